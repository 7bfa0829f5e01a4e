"""Displaced sets: each image moved once and for all, the same for everybody."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from miniatures import isic2018
from photos import photos

from rayfl.blueprint import make_blueprint
from rayfl.config import ExperimentConfig
from rayfl.data import DataConfig, SyntheticConfig, federate, open_dataset
from rayfl.data.augment import augmentation
from rayfl.data.displacement import check, displace, offsets
from rayfl.data.store import Dataset
from rayfl.errors import UserError
from rayfl.models import ModelConfig


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    small = SyntheticConfig(num_train=60, num_test=20, channels=2, height=6, width=5)
    return DataConfig(name="synthetic", root=str(tmp_path), num_clients=4, synthetic=small, displacement=2)


def moved_by_hand(pixels: np.ndarray, up: int, left: int) -> np.ndarray:
    """Pixel by pixel; zeros where nothing comes from inside."""
    found = np.zeros_like(pixels)
    height, width = pixels.shape[-2:]
    for y in range(height):
        for x in range(width):
            if 0 <= y + up < height and 0 <= x + left < width:
                found[..., y, x] = pixels[..., y + up, x + left]
    return found


def test_images_and_masks_move_by_their_own_steps() -> None:
    images = photos(3, 2, 5, 7)
    masks = (images[:, 0] > 100).byte()
    moves = np.array([[2, -1], [0, 0], [-2, 2]])
    found, moved = displace(images, masks, moves, 2)
    assert moved is not None
    for row, (up, left) in enumerate(moves):
        assert np.array_equal(found[row], moved_by_hand(images[row].numpy(), up, left))
        assert np.array_equal(moved[row], moved_by_hand(masks[row].numpy(), up, left))
    assert displace(images, None, moves, 2)[1] is None


def test_every_step_up_to_the_most_is_as_likely() -> None:
    """4500 draws of 9: 500 each, deviation 21; both ways apart, and of train apart from test."""
    train = offsets("train", 4500, 4)
    for way in (0, 1):
        counts = np.bincount(train[:, way] + 4, minlength=9)
        assert len(counts) == 9
        assert abs(counts - 500).max() < 4 * 21
    assert abs(np.corrcoef(train.T)[0, 1]) < 0.06
    assert not np.array_equal(train, offsets("test", 4500, 4))
    assert np.array_equal(train, offsets("train", 4500, 4))


def test_a_set_is_displaced_for_everybody_alike(config: DataConfig) -> None:
    """Each image of both splits, whatever batch it is in, whoever opens the set; labels stay."""
    for usual, found in zip(open_dataset(replace(config, displacement=0)), open_dataset(config), strict=True):
        steps = offsets(found.path.stem, len(found), 2)
        rows = np.arange(len(found))
        pixels = np.stack([moved_by_hand(usual.images[i], *steps[i]) for i in rows])
        mean, std = (np.array(v)[:, None, None] * 255 for v in (found.mean, found.std))
        inputs, labels = found.batch(rows, torch.float64)
        assert np.allclose(inputs, (pixels - mean) / std, atol=1e-12)
        assert np.array_equal(labels, usual.labels)
        assert torch.equal(found.batch([7, 3], torch.float64)[0], inputs[[7, 3]])
        again = pickle.loads(pickle.dumps(found))
        assert torch.equal(again.batch(rows, torch.float64)[0], inputs)
        afresh = Dataset(found.path, None, 2)
        assert torch.equal(afresh.batch(rows, torch.float64)[0], inputs)
        assert (inputs != usual.batch(rows, torch.float64)[0]).flatten(1).any(1).sum() > 0.8 * len(rows)


def test_augmentation_comes_after(config: DataConfig) -> None:
    train, _ = open_dataset(config)
    change = augmentation("crop_flip", 0, 1, 0, 0)
    assert change is not None
    bytes_ = displace(torch.tensor(train.images[:4]), None, offsets("train", 60, 2)[:4], 2)[0]
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] * 255 for v in (train.mean, train.std))
    wanted = (change(bytes_, None)[0].double() - mean) / std
    assert torch.allclose(train.batch(range(4), torch.float64, augment=change)[0], wanted, atol=1e-12)


def test_photographs_move_after_resizing_with_their_masks(tmp_path: Path) -> None:
    isic2018(tmp_path / "mini")
    config = DataConfig(name="isic2018", source=str(tmp_path / "mini"), root=str(tmp_path), image_size=16)
    (usual, _), (found, _) = open_dataset(config), open_dataset(replace(config, displacement=5))
    rows, steps = range(4), offsets("train", len(found), 5)
    for before, after in zip(usual._read(np.arange(4)), found._read(np.arange(4)), strict=True):
        assert before is not None
        assert after is not None
        for row in rows:
            assert np.array_equal(after[row], moved_by_hand(before[row].numpy(), *steps[row]))
    assert found.batch(rows)[1].any()


def test_it_is_another_experiment_on_the_same_partition(config: DataConfig) -> None:
    usual = replace(config, displacement=0)
    one, other = (ExperimentConfig(data=data) for data in (config, usual))
    assert one.cell_hash != other.cell_hash
    parts = [federate(data, 0, *open_dataset(data)).partition.hash for data in (config, usual)]
    assert parts[0] == parts[1]


def test_images_stay_in_their_frame(config: DataConfig) -> None:
    check(7, (1, 8, 20))
    with pytest.raises(UserError, match=r"data.displacement=8 moves images of 8x20 out .* at most 7"):
        check(8, (1, 8, 20))
    with pytest.raises(UserError, match=r"displacement=5 moves images of 6x5 out"):
        make_blueprint(ExperimentConfig(data=replace(config, displacement=5), model=ModelConfig(name="mlp")))
