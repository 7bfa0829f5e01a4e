"""The store: prepared once, mapped not read, repaired when damaged, the same to every process."""

import json
import logging
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.data import (
    DATASETS,
    DataConfig,
    Dataset,
    DatasetInfo,
    SyntheticConfig,
    open_dataset,
    outline,
    store,
)
from rayfl.data.catalogue import FILES
from rayfl.data.dataset import reopen
from rayfl.data.images import resize
from rayfl.data.moments import moments
from rayfl.errors import UserError

SMALL = SyntheticConfig(num_train=60, num_test=20, channels=3, height=6, width=5)


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(name="synthetic", root=str(tmp_path), synthetic=SMALL)


def forget() -> None:
    """Behave like a new process."""
    store._sound.clear()
    reopen.cache_clear()


def test_digits(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    train, test = open_dataset(DataConfig(name="digits", root=str(tmp_path)))
    assert (len(train), len(test), train.shape, train.num_classes) == (1437, 360, (1, 8, 8), 10)
    assert (tmp_path / "digits" / "train.arrow").exists()
    raw = load_digits()
    ours = np.concatenate([train.images, test.images])[:, 0].astype(float) * 16 / 255
    key = lambda images: np.sort([i.round().astype(np.uint8).tobytes() for i in images])  # noqa: E731
    assert np.array_equal(key(ours), key(raw.images))
    shares = np.bincount(test.labels) / np.bincount(raw.target)
    assert shares.max() - shares.min() < 0.01


def test_mnist5k(tmp_path: Path) -> None:
    config = DataConfig(name="mnist5k", root=str(tmp_path))
    before = outline(config)
    train, test = open_dataset(config)
    assert outline(config) == before
    assert (len(train), len(test), train.shape) == (4000, 1000, (1, 28, 28))
    assert np.bincount(test.labels).tolist() == [100] * 10
    assert train.mean == pytest.approx((0.1307,), abs=0.005)  # that of all of MNIST
    assert train.std == pytest.approx((0.3081,), abs=0.005)


def test_arrays_are_mapped_and_read_only(config: DataConfig) -> None:
    train, _ = open_dataset(config)
    assert train.images.shape == (60, 3, 6, 5)
    assert train.images.dtype == np.uint8
    assert train.labels.dtype == np.int64
    for array in (train.images, train.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        address = array.__array_interface__["data"][0]
        inside = False
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            if start <= address < end:
                inside = line.endswith("train.arrow")
        assert inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [[3, 0, 3], np.array([59, 1]), torch.tensor([5]), []])
def test_batch_values(config: DataConfig, dtype: torch.dtype, rows: Any) -> None:
    train, _ = open_dataset(config)
    images, labels = train.batch(rows, dtype=dtype)
    chosen = np.asarray(rows, dtype=np.int64)
    mean, std = (np.array(v)[:, None, None] for v in (train.mean, train.std))
    plain = (train.images[chosen] / 255 - mean) / std
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.05}[dtype]
    assert images.dtype == dtype
    assert labels.dtype == torch.int64
    assert images.shape == (len(rows), 3, 6, 5)
    np.testing.assert_allclose(images.double().numpy(), plain, atol=tolerance, rtol=tolerance)
    assert labels.tolist() == train.labels[chosen].tolist()
    first = images.clone()
    images.zero_()
    labels.fill_(-1)
    assert torch.equal(train.batch(rows, dtype=dtype)[0], first)


def test_the_training_set_is_normalised(config: DataConfig) -> None:
    train, test = open_dataset(config)
    images, _ = train.batch(np.arange(60), dtype=torch.float64)
    assert images.mean(dim=(0, 2, 3)).abs().max() < 1e-12
    assert (images.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-12
    assert (test.mean, test.std) == (train.mean, train.std)


def test_pickle_is_the_path(config: DataConfig) -> None:
    train, _ = open_dataset(config)
    text = pickle.dumps(train)
    assert len(text) < 1000
    forget()
    again = pickle.loads(text)
    assert again is not train
    assert pickle.loads(text) is again
    assert np.array_equal(again.images, train.images)
    shutil.rmtree(train.path.parent)
    forget()
    with pytest.raises(UserError, match=r"data\.root"):
        pickle.loads(text)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def garble_meta(path: Path) -> None:
    (path.parent / "meta.json").write_text("{")


def old_version(path: Path) -> None:
    meta = json.loads((path.parent / "meta.json").read_text())
    (path.parent / "meta.json").write_text(json.dumps(meta | {"version": 0}))


@pytest.mark.parametrize("damage", [cut_off, flip, garble_meta, old_version, Path.unlink])
def test_damaged_copies_are_prepared_again(config: DataConfig, damage: Any, caplog: Any) -> None:
    train, _ = open_dataset(config)
    expected = train.images.copy()
    forget()
    os.utime(train.path, ns=(1, 1))  # as a copy elsewhere would have: no damage
    with caplog.at_level(logging.WARNING, "rayfl.data"):
        open_dataset(config)
        assert not caplog.records
        damage(train.path)
        forget()
        train, _ = open_dataset(config)
    assert "preparing it again" in caplog.text
    assert np.array_equal(train.images, expected)
    assert {p.name for p in train.path.parent.iterdir()} == FILES


def test_a_killed_preparation_leaves_nothing_that_counts(config: DataConfig, tmp_path: Path) -> None:
    train, _ = open_dataset(config)
    folder = train.path.parent
    partial = folder.with_name(f".{folder.name}.partial")
    folder.rename(partial)
    cut_off(partial / "train.arrow")
    forget()
    train, _ = open_dataset(config)
    assert len(train) == 60
    assert not partial.exists()


def _open_one(config: DataConfig, barrier: Any, results: Any) -> None:
    barrier.wait()
    train, _ = open_dataset(config)
    results.put((len(train), int(train.images.sum())))


def test_four_processes_prepare_one_copy(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    info = DATASETS["synthetic"]

    def counted(c: DataConfig, source: Path | None) -> Any:
        with calls.open("a") as f:
            f.write("x")
        return info.build(c, source)

    monkeypatch.setitem(DATASETS, "synthetic", replace(info, build=counted))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_open_one, args=(config, barrier, results)) for _ in range(4)]
    for p in processes:
        p.start()
    found = [results.get(timeout=30) for _ in processes]
    for p in processes:
        p.join(30)
    assert calls.read_text() == "x"
    assert len(set(found)) == 1
    assert found[0][0] == 60


def test_synthetic_depends_on_its_options_alone(config: DataConfig, tmp_path: Path) -> None:
    train, test = open_dataset(config)
    other = DataConfig(name="synthetic", root=str(tmp_path / "b"), synthetic=SMALL, num_clients=3)
    assert np.array_equal(open_dataset(other)[0].images, train.images)
    assert not np.array_equal(train.images[:20], test.images)
    assert open_dataset(config)[0] is train
    noisier = SyntheticConfig(num_train=60, num_test=20, channels=3, height=6, width=5, noise=2.0)
    changed, _ = open_dataset(DataConfig(name="synthetic", root=str(tmp_path), synthetic=noisier))
    assert changed.path.parent != train.path.parent
    assert not np.array_equal(changed.images, train.images)


def test_synthetic_can_be_learnt_and_domains_shift_it(tmp_path: Path) -> None:
    options = {"num_train": 600, "num_test": 200, "channels": 1, "height": 8, "width": 8, "num_domains": 3}

    def nearest_mean(shift: float) -> tuple[float, float]:
        synthetic = SyntheticConfig(**options, domain_shift=shift)  # type: ignore[arg-type]
        train, test = open_dataset(DataConfig(name="synthetic", root=str(tmp_path), synthetic=synthetic))
        assert train.domains is not None
        assert test.domains is not None
        assert np.bincount(train.domains).tolist() == [200] * 3
        x, y = (images.reshape(len(images), -1).astype(float) for images in (train.images, test.images))
        means = np.stack([x[(train.labels == k) & (train.domains == 0)].mean(axis=0) for k in range(10)])
        right = ((y[:, None] - means) ** 2).sum(axis=2).argmin(axis=1) == test.labels
        return float(right[test.domains == 0].mean()), float(right[test.domains != 0].mean())

    same, other = nearest_mean(0.0)
    assert same > 0.9
    assert other > 0.9
    same, other = nearest_mean(2.0)
    assert same > 0.8
    assert other < same - 0.2


def test_one_pixel_and_constant_channels(tmp_path: Path) -> None:
    tiny = SyntheticConfig(num_train=20, num_test=10, height=1, width=1, num_classes=2)
    train, _ = open_dataset(DataConfig(name="synthetic", root=str(tmp_path), synthetic=tiny))
    assert train.batch(np.arange(20))[0].isfinite().all()
    mean, std = moments([np.full((3, 1, 2, 2), 51, dtype=np.uint8)])
    assert mean == pytest.approx([0.2])
    assert std == [1.0]


def test_unknown_names_get_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown dataset 'mnist5': did you mean 'mnist5k'"):
        open_dataset(DataConfig(name="mnist5", root=str(tmp_path)))


def test_offline_says_where_files_go(config: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(_: DataConfig, source: Path | None) -> Any:
        raise OSError("no route to host")

    info = DatasetInfo(build=offline, description="", remedy="put x.tar into downloads/")
    monkeypatch.setitem(DATASETS, "synthetic", info)
    with pytest.raises(UserError, match=r"can't be prepared \(no route to host\): put x.tar into downloads/"):
        open_dataset(config)


def test_a_folder_of_the_users_is_never_replaced(tmp_path: Path) -> None:
    """As when data.root is the folder in which the user keeps the downloaded sets."""
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "mine.zip").write_text("precious")
    with pytest.raises(UserError, match=r"holds mine.zip: set data\.root"):
        open_dataset(DataConfig(name="digits", root=str(tmp_path)))
    assert (tmp_path / "digits" / "mine.zip").read_text() == "precious"


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_outlines_are_what_is_prepared(tmp_path: Path, name: str) -> None:
    config = DataConfig(name=name, root=str(tmp_path), synthetic=SMALL)
    before = outline(config)
    train, test = open_dataset(config)
    assert before == outline(config)
    assert before.shape == train.shape
    assert before.class_counts == tuple(np.bincount(train.labels))
    assert (before.num_test, before.task) == (len(test), "classification")
    assert outline(replace(config, image_size=9)).shape == (train.shape[0], 9, 9)


def test_small_images_are_resized_when_read(config: DataConfig) -> None:
    """A gradient stays one, a plain image keeps its value; labels and constants stay."""
    train, _ = open_dataset(config)
    large, _ = open_dataset(replace(config, image_size=12))
    assert large is not train
    assert large is pickle.loads(pickle.dumps(large))
    assert large.shape == (3, 12, 12)
    assert (large.mean, large.std) == (train.mean, train.std)
    inputs, labels = large.batch([0, 5])
    assert inputs.shape == (2, 3, 12, 12)
    assert labels.tolist() == train.labels[[0, 5]].tolist()
    ramp = torch.arange(0, 160, 10, dtype=torch.uint8).repeat(1, 1, 16, 1)
    assert resize(ramp, (16, 16)) is ramp
    assert resize(ramp, (8, 8))[0, 0, 3].tolist()[1:-1] == [25, 45, 65, 85, 105, 125]
    stripes = torch.tensor([255, 0, 0, 0] * 4, dtype=torch.uint8).repeat(1, 1, 16, 1)
    assert resize(stripes, (4, 4)).min() > 30  # antialiased: no pixel is passed over
    assert resize(torch.full((1, 2, 5, 7), 77, dtype=torch.uint8), (9, 3)).unique().tolist() == [77]
    assert large.batch([])[0].shape == (0, 3, 12, 12)


def test_augmentation_works_on_bytes_after_resizing(config: DataConfig) -> None:
    train, _ = open_dataset(replace(config, image_size=4))
    seen: list[torch.Tensor] = []

    def two_views(images: torch.Tensor, masks: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        assert masks is None
        seen.append(images)
        return torch.cat([images, 255 - images]), None

    inputs, labels = train.batch([7, 3], dtype=torch.float64, augment=two_views)
    assert seen[0].dtype == torch.uint8
    assert seen[0].shape == (2, 3, 4, 4)
    assert labels.tolist() == train.labels[[7, 3, 7, 3]].tolist()
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (train.mean, train.std))
    bytes_again = (inputs * std + mean) * 255
    torch.testing.assert_close(bytes_again[:2], seen[0].double())
    torch.testing.assert_close(bytes_again[2:], 255 - seen[0].double())


def test_a_root_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.root"):
        open_dataset(DataConfig(name="synthetic", root=str(tmp_path / "file"), synthetic=SMALL))


def test_root_comes_from_the_environment(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "env"))
    train, _ = open_dataset(DataConfig(name="synthetic", synthetic=SMALL))
    assert isinstance(train, Dataset)
    assert train.path.is_relative_to(tmp_path / "env")


@pytest.mark.slow
def test_importing_and_opening_stays_light_and_drawing_leaves_pyplot_alone(
    config: DataConfig, tmp_path: Path
) -> None:
    open_dataset(config)
    heavy = ("matplotlib", "sklearn", "mlxtend", "pandas", "torchvision")
    code = (
        "import sys; from rayfl.data import *\n"
        f"open_dataset(DataConfig(name='synthetic', root={config.root!r}, synthetic={SMALL!r}))\n"
        f"print([m for m in {heavy!r} if m in sys.modules])\n"
        f"draw_partition(Partition.of([[0], [1]]), [0, 1], 2, {str(tmp_path / 'p.png')!r}, 't')\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["[]", "False"]
