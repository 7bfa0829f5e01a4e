"""Pretrained weights: taken from the libraries' own files, refused where they don't fit, never unpickled."""

import functools
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from rayfl import models, weights
from rayfl.errors import UserError
from rayfl.loading.experiments import load_experiment
from rayfl.models import ModelConfig

IMAGE = (3, 64, 64)
NARROW = {"stem": "imagenet", "width": 0.125}


def saved(state: Mapping[str, Tensor], path: Path) -> str:
    torch.save(dict(state), path)
    return str(path)


def library(name: str) -> list[str]:
    """The names in the library's own file."""
    with torch.device("meta"):
        if name.startswith("vit"):
            model: nn.Module = timm.create_model("vit_tiny_patch16_224")
        elif name == "resnet50_unet":
            model = smp.Unet("resnet50", encoder_weights=None)
        else:
            model = torchvision.models.get_model(name)
    return list(model.state_dict())


def file(name: str, path: Path, keys: str | None = None, **options: object) -> tuple[dict[str, Tensor], str]:
    """The state of a narrow model for 10 classes, and a file of it with the library's names (same order)."""
    config = ModelConfig(name=name, **{**NARROW, **options})  # type: ignore[arg-type]
    state = models.build(config, IMAGE, 10, 1).state_dict()
    return state, saved(dict(zip(library(keys or name), state.values(), strict=True)), path)


def config(path: str, name: str, **options: object) -> ModelConfig:
    return ModelConfig(name=name, weights=path, **{**NARROW, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], str]:
    """ResNet-18 for 10 classes, under torchvision's names."""
    return file("resnet18", tmp_path_factory.mktemp("weights") / "resnet18.pth")


LIBRARIES: list[tuple[str, str | None, dict[str, object]]] = [
    ("resnet34", None, {}),
    ("resnet50", None, {}),
    ("mobilenet_v3_small", None, {}),
    ("vit_tiny", None, {"width": 0.34}),
    ("vgg11", "vgg11_bn", {"width": 0.02}),
    ("vgg16", "vgg16", {"width": 0.02, "norm": "none"}),
    ("alexnet", None, {"norm": "none"}),
    ("resnet50_unet", None, {"skips": 4}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "keys", "options"), LIBRARIES, ids=lambda value: str(value))
def test_names_of_the_libraries(
    name: str, keys: str | None, options: dict[str, object], tmp_path: Path
) -> None:
    """Their names in their order, which other tests hold to give their logits, land on our blocks."""
    state, path = file(name, tmp_path / "theirs.pt", keys, **options)
    found = weights.build(config(path, name, **options), IMAGE, 10, 2).state_dict()
    assert all(torch.equal(value, found[key]) for key, value in state.items())


def test_unet_takes_a_classifiers_encoder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """torchvision's ResNet-50 fills the encoder, also the part inside the U-Net block."""
    state, path = file("resnet50", tmp_path / "encoder.pth")
    with caplog.at_level(logging.INFO, "rayfl.weights"):
        ours = weights.build(config(path, "resnet50_unet"), IMAGE, 2, 5)
    plain = models.build(ModelConfig(name="resnet50_unet", width=0.125), IMAGE, 2, 5)
    assert torch.equal(ours.stem[0].weight, state["stem.0.weight"])
    assert torch.equal(ours.unet.encoder["layer4"][2].conv3.weight, state["layer4_2.conv3.weight"])
    assert torch.equal(ours.unet.segmentation_head[0].weight, plain.unet.segmentation_head[0].weight)
    assert "encoder.pth: 318 entries taken, left as initialised: unet.decoder.blocks.0" in caplog.text


def test_vgg_convolutions_under_a_small_head(tmp_path: Path) -> None:
    """Of a file for large images, the classifier has no place under the head for small ones and stays out."""
    state, path = file("vgg11", tmp_path / "vgg.pth", "vgg11_bn", width=0.02)
    ours = weights.build(config(path, "vgg11", width=0.02, stem="cifar"), IMAGE, 10, 5)
    plain = models.build(ModelConfig(name="vgg11", width=0.02), IMAGE, 10, 5)
    assert torch.equal(ours.conv5_2[0].weight, state["conv5_2.0.weight"])
    assert torch.equal(ours.head[2].weight, plain.head[2].weight)


def test_a_head_of_other_classes_stays(
    resnet: tuple[dict[str, Tensor], str], caplog: pytest.LogCaptureFixture
) -> None:
    state, path = resnet
    with caplog.at_level(logging.INFO, "rayfl.weights"):
        ours = weights.build(config(path, "resnet18"), IMAGE, 7, 5).state_dict()
    plain = models.build(ModelConfig(name="resnet18", width=0.125, stem="imagenet"), IMAGE, 7, 5)
    assert torch.equal(ours["head.2.weight"], plain.head[2].weight)
    assert all(torch.equal(ours[key], value) for key, value in state.items() if "head" not in key)
    assert "resnet18.pth: 120 entries taken, left as initialised: head.2.weight, head.2.bias" in caplog.text


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_our_own_files(suffix: str, tmp_path: Path) -> None:
    """A model of rayfl, stored either way, comes back whole."""
    state = models.build(ModelConfig(name="cnn"), (1, 28, 28), 10, 1).state_dict()
    path = tmp_path / f"cnn{suffix}"
    if suffix == ".pt":
        torch.save({"state_dict": state, "epoch": 3}, path)
    else:
        save_file(state, path)
    found = weights.build(config(str(path), "cnn", width=1.0), (1, 28, 28), 10, 2).state_dict()
    assert all(torch.equal(value, found[key]) for key, value in state.items())


def test_a_small_models_head_of_other_classes_stays(tmp_path: Path) -> None:
    state = models.build(ModelConfig(name="mlp"), (1, 8, 8), 10, 1).state_dict()
    path = saved(state, tmp_path / "mlp.pt")
    found = weights.build(config(path, "mlp", width=1.0), (1, 8, 8), 4, 2)
    assert torch.equal(found.fc2[0].weight, state["fc2.0.weight"])
    assert torch.equal(found.head.weight, models.build(ModelConfig(name="mlp"), (1, 8, 8), 4, 2).head.weight)


def test_positions_are_interpolated(tmp_path: Path) -> None:
    """Embeddings of 4x4 patches for an image of 6x2: constant ones stay constant."""
    state, _ = file("vit_tiny", tmp_path / "vit.pth", width=0.34, patch_size=16)
    state["embed.pos_embed"].fill_(0.5)
    path = saved(state, tmp_path / "vit.pth")
    ours = weights.build(config(path, "vit_tiny", width=0.34, patch_size=16), (3, 96, 32), 10, 0)
    assert ours.embed.pos_embed.shape == (1, 13, 64)
    assert torch.allclose(ours.embed.pos_embed, torch.tensor(0.5))


def test_old_files_without_batch_counters(resnet: tuple[dict[str, Tensor], str], tmp_path: Path) -> None:
    state = {key: value for key, value in resnet[0].items() if not key.endswith("tracked")}
    found = weights.build(config(saved(state, tmp_path / "old.pth"), "resnet18"), IMAGE, 10, 2).state_dict()
    assert all(torch.equal(value, found[key]) for key, value in state.items())


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("resnet18", {"stem": "cifar"}, r"stem\.0\.weight wants \[8, 3, 3, 3\], got \[8, 3, 7, 7\]; check"),
        ("resnet34", {}, r"layer1_2\.conv1\.weight wants \[8, 8, 3, 3\], got none; .* and \d+ more"),
        ("resnet18", {"norm": "none"}, r"bn1\.weight has no place; "),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    name: str, options: dict[str, str], complaint: str, resnet: tuple[dict[str, Tensor], str]
) -> None:
    with pytest.raises(UserError, match=rf"resnet18\.pth doesn't fit {name}: {complaint}"):
        weights.build(config(resnet[1], name, **options), IMAGE, 10, 0)


def test_a_deeper_models_file_is_refused(tmp_path: Path) -> None:
    """Every entry that ResNet-18 wants is there: what is left over gives the file away."""
    _, path = file("resnet34", tmp_path / "r34.pth")
    with pytest.raises(UserError, match=r"layer1\.2\.conv1\.weight has no place"):
        weights.build(config(path, "resnet18"), IMAGE, 10, 0)


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("unpickled",)


@pytest.mark.parametrize(
    "content", [pickle.dumps(Trap(), 2), b"", b"no weights", b"hi\n", pickle.dumps([1, 2], 2)]
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_nothing_but_tensors_is_read(
    content: bytes, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is no file of plain tensors|holds no state dict"):
        weights.build(config(str(path), "resnet18"), IMAGE, 10, 0)
    assert "unpickled" not in capsys.readouterr().out


def test_the_config_knows_the_file_by_its_content(tmp_path: Path) -> None:
    """Loading a config fills in the hash: another content is another cell, and no silent change of a run."""
    state = models.build(ModelConfig(name="cnn"), (1, 28, 28), 10, 1).state_dict()
    path, hashes = tmp_path / "w.pth", []
    for _ in range(2):
        saved(state, path)
        loaded = load_experiment({"model": {"name": "cnn", "weights": str(path)}})
        assert loaded.model.weights == str(path)
        hashes.append((loaded.model.weights_hash, loaded.cell_hash))
        weights.build(loaded.model, (1, 28, 28), 10, 0)
        state["head.bias"] += 1
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1] != hashes[1][1]
    again = load_experiment(loaded)
    assert again.cell_hash == loaded.cell_hash
    saved(state, path)
    weights._fitting.cache_clear()
    with pytest.raises(UserError, match="is not the file it was"):
        weights.build(loaded.model, (1, 28, 28), 10, 0)
    with pytest.raises(UserError, match=r"can't be read \(No such file or directory\): give the path"):
        load_experiment({"model": {"weights": str(tmp_path / "none.pth")}})


def test_the_factory_is_pure_and_can_be_pickled(resnet: tuple[dict[str, Tensor], str]) -> None:
    factory = functools.partial(weights.build, config(resnet[1], "resnet18"), IMAGE, 7, 3)
    one, other = factory().state_dict(), pickle.loads(pickle.dumps(factory))().state_dict()
    assert all(torch.equal(value, other[key]) for key, value in one.items())
