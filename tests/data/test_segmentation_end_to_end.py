"""Split and hierarchical methods on dermoscopic images with masks, from files to Dice."""

from pathlib import Path
from typing import Any

import pytest
from miniatures import isic2018

import rayfl
from rayfl import costs
from rayfl.loading.experiments import load_experiment

pytestmark = pytest.mark.slow

EPOCHS = {"local_epochs": 3, "edge_epochs": 3, "cloud_epochs": 3}
METHODS: list[tuple[int, dict[str, Any]]] = [
    (2, {"name": "hsfp", "cut_layers": ["layer1", "layer2"], "intervals": [1, 2], **EPOCHS}),
    (4, {"name": "hsfl", "cut_layers": ["layer1", "layer2"]}),
    (4, {"name": "splitfed_v1", "cut_layer": "layer2"}),
]


@pytest.mark.parametrize(("rounds", "algorithm"), METHODS, ids=lambda value: str(value)[:20])
def test_a_method_finds_lesions(rounds: int, algorithm: dict[str, Any], tmp_path: Path) -> None:
    """Better than the model that nobody has trained; every number is finite."""
    isic2018(tmp_path / "mini")
    config = load_experiment(
        {
            "rounds": rounds,
            "algorithm": {"batch_size": 5, "optimizer": "adam", "lr": 0.003, **algorithm},
            "data": {
                "name": "isic2018",
                "source": str(tmp_path / "mini"),
                "root": str(tmp_path / "root"),
                "image_size": 32,
                "num_clients": 4,
                "num_edges": 2,
                "val_fraction": 0.0,
                "partition": {"kind": "iid", "min_size": 0},
            },
            "model": {"name": "resnet50_unet", "norm": "group", "width": 0.125},
            "tracking": {"enabled": False},
        }
    )
    result = rayfl.run(config, out=tmp_path / "out")
    first, last = result.history[0], result.history[-1]
    assert (result.status, result.rounds) == ("FINISHED", rounds)
    assert last["global/test_dice"] > first["global/test_dice"] + 0.05
    assert last["global/test_loss"] < first["global/test_loss"]
    kinds = {"moments", "counts", "weights"} if algorithm["name"] == "hsfp" else {"activation", "gradient"}
    sent = {
        name.split("_")[2]
        for name, bytes_ in last.items()
        if name.count("_") == 3 and "comm/" in name and bytes_
    }
    assert sent >= kinds
    if algorithm["name"] == "hsfp":
        assert sent == kinds
    cost = costs.estimate(config)
    assert sum(cost.traffic.values()) == last["comm/total_bytes"]
    assert any("masks are made up" in note for note in cost.notes) == (algorithm["name"] == "hsfp")
