"""Large images: kept encoded, decoded when read; masks; small files decoded once."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import Camera, encode, photograph, row, split

from rayfl.data import DATASETS, DataConfig, Normalisation, moments, open_dataset, read_card
from rayfl.data.columns import EncodedColumn
from rayfl.errors import UserError

COLOURS = (10, 100, 60, 33)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(name="pictures", root=str(tmp_path), image_size=8)


def photographs(kind: str = "PNG") -> Camera:
    return Camera({str(i): photograph(n, 20 + i, 30 - i, kind) for i, n in enumerate(COLOURS)})


def table(monkeypatch: pytest.MonkeyPatch, camera: Camera, **options: object) -> None:
    names = [name for name in camera.files if not name.endswith("m")]
    mask_names = [f"{name}m" for name in names] if len(names) < len(camera.files) else None
    shape = options.pop("shape", None)
    whole = split(camera, names, mask_names=mask_names, shape=shape)
    monkeypatch.setitem(DATASETS, "pictures", row(whole, whole, **options))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP"])
def test_photographs_are_decoded_when_read(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Plain colours survive any filter, so batches are these colours, normalised."""
    camera = photographs(kind)
    table(monkeypatch, camera)
    train, _ = open_dataset(config)
    assert isinstance(train.images, EncodedColumn)
    assert [bytes(train.images[i]) for i in range(4)] == list(camera.files.values())
    assert bytes(train.images[-1]) == camera.files["3"]
    with pytest.raises(IndexError):
        train.images[4]
    assert train.shape == (3, 8, 8)
    inputs, labels = train.batch([3, 1], dtype=torch.float64)
    assert labels.tolist() == [0, 1]
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (train.mean, train.std))
    pixels = (inputs * std + mean) * 255
    wanted = torch.tensor([[n, 2 * n, 255 - n] for n in (33, 100)], dtype=torch.float64)
    torch.testing.assert_close(
        pixels, wanted[:, :, None, None].expand(2, 3, 8, 8), atol=3 if kind == "JPEG" else 1e-6, rtol=0
    )
    assert torch.equal(train.batch([3, 1], dtype=torch.float64)[0], inputs)
    assert pickle.loads(pickle.dumps(train)) is train
    assert len(pickle.dumps(train)) < 1000


def test_the_encoded_column_is_mapped(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    table(monkeypatch, photographs())
    train, _ = open_dataset(config)
    assert isinstance(train.images, EncodedColumn)
    view = np.frombuffer(train.images[2], dtype=np.uint8)
    address = view.__array_interface__["data"][0]
    lines = Path("/proc/self/maps").read_text().splitlines()
    (home,) = [
        line
        for line in lines
        if int(line.split("-")[0], 16) <= address < int(line.split()[0].split("-")[1], 16)
    ]
    assert home.endswith("train.arrow")
    assert not view.flags.writeable


def test_photographs_are_224_pixels_wide_unless_asked(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(monkeypatch, photographs())
    train, _ = open_dataset(DataConfig(name="pictures", root=config.root))
    assert train.shape == (3, 224, 224)
    assert train.batch([0])[0].shape == (1, 3, 224, 224)


def test_detail_is_squeezed_to_a_square() -> None:
    """Left half black, right half white, at 30 x 20: the same at 8 x 8."""
    from rayfl.data.images import decode_batch

    halves = np.zeros((20, 30, 3))
    halves[:, 15:] = 255
    for kind, off in (("PNG", 0), ("JPEG", 6)):
        pixels = decode_batch([encode(halves, kind)], (8, 8))[0].int()
        assert pixels[:, :, :3].max() <= off
        assert pixels[:, :, 5:].min() >= 255 - off
    grey = decode_batch([encode(np.full((4, 4), 9)), encode(np.full((4, 4), 200), "JPEG")], (4, 4))
    assert grey.flatten(1).unique(dim=1).tolist() == [[9], [200]]


def test_moments_are_those_of_the_images_as_seen(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain colours: each photograph counts alike, whatever its size."""
    table(monkeypatch, photographs())
    train, _ = open_dataset(config)
    red = np.array(COLOURS) / 255
    assert train.mean == pytest.approx((red.mean(), 2 * red.mean(), 1 - red.mean()))
    assert train.std == pytest.approx((red.std(), 2 * red.std(), red.std()))


def test_of_many_photographs_some_are_looked_at(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four, two evenly spaced ones are the first and the last."""
    monkeypatch.setattr("rayfl.data.writing.MOST_PHOTOGRAPHS", 2)
    monkeypatch.setattr(__import__("sys").modules["rayfl.data.moments"], "MOST_PHOTOGRAPHS", 2)
    table(monkeypatch, photographs())
    train, _ = open_dataset(config)
    assert train.mean[0] == pytest.approx((10 + 33) / 2 / 255)
    how = read_card(train.path.parent)["normalisation"]["how"]
    assert how == "computed from 2 evenly spaced training images"


def test_official_constants_are_used_and_named(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    table(monkeypatch, photographs(), normalisation=Normalisation(mean=(0.5,) * 3, std=(0.25,) * 3))
    train, _ = open_dataset(config)
    assert (train.mean, train.std) == ((0.5,) * 3, (0.25,) * 3)
    assert read_card(train.path.parent)["normalisation"]["how"] == "the constants in common use"


def masked(value: int = 255) -> Camera:
    """Photographs 20 x 30 whose right half is the lesion."""
    mask = np.zeros((20, 30))
    mask[:, 15:] = value
    camera = Camera({str(i): photograph(n) for i, n in enumerate(COLOURS)})
    camera.files.update({f"{i}m": encode(mask) for i in range(4)})
    return camera


@pytest.mark.parametrize("shape", [None, (3, 20, 30)])
def test_masks_are_the_labels_of_segmentation(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int] | None
) -> None:
    """Half of 8 columns is 4, kept encoded or decoded once; augmentation moves both."""
    table(monkeypatch, masked(), shape=shape, task="segmentation")
    train, _ = open_dataset(config)
    assert train.task == "segmentation"
    inputs, labels = train.batch([1, 2])
    assert inputs.shape == (2, 3, 8, 8)
    assert (labels.dtype, labels.shape) == (torch.uint8, (2, 8, 8))
    assert torch.equal(labels, torch.tensor([0] * 4 + [1] * 4, dtype=torch.uint8).expand(2, 8, 8))

    def flip(images: torch.Tensor, masks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert masks is not None
        return torch.cat([images, images.flip(-1)]), torch.cat([masks, masks.flip(-1)])

    inputs, labels = train.batch([1], augment=flip)
    assert inputs.shape == (2, 3, 8, 8)
    assert labels[1].tolist() == labels[0].flip(-1).tolist()
    assert read_card(train.path.parent)["splits"]["train"]["classes"] == {}


def test_masks_that_would_all_be_empty_are_refused(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(monkeypatch, masked(1), task="segmentation")
    with pytest.raises(UserError, match="image '0' is a mask of values up to 1: 255"):
        open_dataset(config)


def test_a_mask_of_another_size_is_refused(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    camera = masked()
    camera.files["1m"] = encode(np.zeros((4, 5)))
    table(monkeypatch, camera, task="segmentation")
    with pytest.raises(UserError, match="image '1' is 30x20, its mask 5x4"):
        open_dataset(config)


def test_small_files_are_decoded_once(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    table(monkeypatch, Camera({str(i): encode(one) for i, one in enumerate(pixels)}), shape=(3, 6, 5))
    train, _ = open_dataset(DataConfig(name="pictures", root=config.root))
    assert isinstance(train.images, np.ndarray)
    assert np.array_equal(train.images, pixels.transpose(0, 3, 1, 2))
    assert train.shape == (3, 6, 5)


def test_a_small_file_of_another_shape_is_named(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    camera = Camera({str(i): encode(np.zeros((6, 5 + i // 3))) for i in range(4)})
    table(monkeypatch, camera, shape=(1, 6, 5))
    with pytest.raises(UserError, match="image '3' is 6x6, not 5x6"):
        open_dataset(config)


def test_sampled_photographs_are_evenly_spaced() -> None:
    assert moments.sample(3) == [0, 1, 2]
    chosen = moments.sample(25_331)
    assert len(chosen) == len(set(chosen)) == 2000
    assert (chosen[0], chosen[-1]) == (0, 25_330)
    assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1
