"""From official files to a trained model, by the commands and calls that a user gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from miniatures import MINIATURES

import rayfl
from rayfl.cli import main
from rayfl.data import DataConfig, open_dataset

pytestmark = pytest.mark.slow

Said = pytest.CaptureFixture[str]


def say(capsys: Said, *command: str) -> Any:
    """What a command prints as JSON."""
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("name", MINIATURES)
def test_prepare_partition_train(name: str, tmp_path: Path, capsys: Said) -> None:
    """Every image that was prepared is some client's, and two rounds of FedAvg run on them."""
    size = 16
    model: dict[str, Any] = {"name": "cnn"}
    if name == "isic2018":
        # GroupNorm, because batches of a few 32-pixel images are too small for BatchNorm over 1x1 maps.
        size, model = 32, {"name": "resnet50_unet", "norm": "group", "width": 0.125}
    source, root = str(tmp_path / "mini"), str(tmp_path / "root")
    MINIATURES[name](Path(source))
    prepared = say(capsys, "data", "prepare", name, "--source", source, "--root", root)
    assert (prepared["made"], prepared["skipped"]) == (True, 0)
    data = {
        "name": name,
        "source": source,
        "root": root,
        "image_size": size,
        "num_clients": 2,
        "num_edges": 1,
        "val_fraction": 0.0,
        "partition": {"kind": "dirichlet", "alpha": 1.0, "min_size": 0},
    }
    settings = [f"data.{key}={json.dumps(value)}" for key, value in data.items()]
    divided = say(capsys, "partition", "fedavg.digits", *settings)
    assert sum(divided["sizes"]) == prepared["card"]["splits"]["train"]["images"]
    result = rayfl.run(
        {
            "rounds": 2,
            "algorithm": {"name": "fedavg", "batch_size": 8, "lr": 0.01},
            "data": data,
            "model": model,
            "tracking": {"enabled": False},
        },
        out=tmp_path / "out",
    )
    assert (result.status, result.rounds) == ("FINISHED", 2)
    assert result.partition_hash == divided["partition_hash"]


def test_prepare_masks(tmp_path: Path, capsys: Said) -> None:
    """Batches have the lesion where the mask has it."""
    MINIATURES["isic2018"](tmp_path / "mini")
    root = tmp_path / "root"
    prepared = say(
        capsys, "data", "prepare", "isic2018", "--source", str(tmp_path / "mini"), "--root", str(root)
    )
    assert prepared["card"]["task"] == "segmentation"
    train, test = open_dataset(DataConfig(name="isic2018", root=str(root), image_size=32))
    for split in (train, test):
        images, masks = split.batch(range(len(split)))
        assert masks.shape == (20, 32, 32)
        assert masks[:, 12, 12].all()
        assert not masks[:, :3].any()
        brightness = images.mean(dim=1)
        assert (brightness[masks == 1].mean() < brightness[masks == 0].mean() - 0.5).item()
