"""Preparing files: goes on after a kill, one copy however many ask, unreadable images, own names."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import Camera, encode, photograph, row, split

from rayfl.data import DATASETS, DataConfig, journal, locate, open_dataset, outline, prepare, read_card, store
from rayfl.data.catalogue import FILES
from rayfl.data.dataset import reopen
from rayfl.data.progress import Progress
from rayfl.errors import UserError

NAMES = [f"{i:02d}.png" for i in range(30)]
TEST = ["t0.png", "t1.png", "t2.png"]


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Camera:
    """The dataset ``pictures``: 30 + 3 photographs, gathered seven at a time."""
    files = {name: photograph(i) for i, name in enumerate([*NAMES, *TEST])}
    camera = Camera(files)
    monkeypatch.setattr(journal, "CHUNK", 7)
    monkeypatch.setitem(DATASETS, "pictures", row(split(camera, NAMES), split(camera, TEST)))
    return camera


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(name="pictures", root=str(tmp_path / "root"))


def forget() -> None:
    """Behave like a new process."""
    store._sound.clear()
    reopen.cache_clear()


def kill_before(camera: Camera, victim: str) -> None:
    def check(name: str) -> None:
        if name == victim:
            raise KeyboardInterrupt

    camera.before = check


def test_a_killed_preparation_goes_on_after_its_last_whole_chunk(camera: Camera, config: DataConfig) -> None:
    """Killed at image 17: two chunks of seven are kept, the third is read anew, nothing else twice."""
    kill_before(camera, NAMES[17])
    with pytest.raises(KeyboardInterrupt):
        open_dataset(config)
    assert camera.read == NAMES[:17]
    root = Path(config.root or "")
    assert not (root / "pictures").exists()

    # What a kill leaves behind: half a chunk beyond the journal, and half a line in it.
    partial = root / ".pictures.partial"
    with (partial / "train.image").open("ab") as block, (partial / "train.journal").open("a") as log:
        block.write(b"torn")
        log.write('{"stop": 21, "ro')
    camera.before, camera.read = lambda name: None, []
    train, test = open_dataset(config)
    assert camera.read == [*NAMES[14:], *TEST]
    assert [bytes(train.images[i]) for i in range(30)] == [camera.files[name] for name in NAMES]
    assert [bytes(test.images[i]) for i in range(3)] == [camera.files[name] for name in TEST]
    assert train.labels.tolist() == [i % 3 for i in range(30)]
    assert {p.name for p in root.iterdir()} == {"pictures", ".pictures.lock"}
    assert {p.name for p in (root / "pictures").iterdir()} == FILES


def test_another_set_of_files_starts_anew(
    camera: Camera, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before(camera, NAMES[17])
    with pytest.raises(KeyboardInterrupt):
        open_dataset(config)
    camera.before, camera.read = lambda name: None, []
    other = [*NAMES[:-1], "t0.png"]
    monkeypatch.setitem(DATASETS, "pictures", row(split(camera, other), split(camera, TEST)))
    train, _ = open_dataset(config)
    assert camera.read == [*other, *TEST]
    assert len(train) == 30


def test_a_block_shorter_than_its_journal_is_not_trusted(camera: Camera, config: DataConfig) -> None:
    kill_before(camera, NAMES[17])
    with pytest.raises(KeyboardInterrupt):
        open_dataset(config)
    block = Path(config.root or "") / ".pictures.partial" / "train.image"
    os.truncate(block, block.stat().st_size - 1)
    camera.before, camera.read = lambda name: None, []
    open_dataset(config)
    assert camera.read == [*NAMES, *TEST]


def test_a_killed_process_leaves_no_lock(camera: Camera, config: DataConfig) -> None:
    kill_before(camera, NAMES[17])
    camera.before = lambda name: os._exit(9) if name == NAMES[17] else None  # type: ignore[assignment]
    process = multiprocessing.get_context("fork").Process(target=open_dataset, args=(config,))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    camera.before = lambda name: None
    train, _ = open_dataset(config)
    assert camera.read == [*NAMES[14:], *TEST]
    assert bytes(train.images[3]) == camera.files[NAMES[3]]


def _prepare_one(config: DataConfig, barrier: Any, results: Any) -> None:
    barrier.wait()
    made = prepare(locate(config), "raise", Progress(live=False))
    results.put((made, int(open_dataset(config)[0].batch(range(30), torch.float64)[0].sum())))


def test_two_processes_prepare_one_copy(camera: Camera, config: DataConfig) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_prepare_one, args=(config, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)
    assert sorted(made for made, _ in found) == [False, True]
    assert found[0][1] == found[1][1]


def broken(camera: Camera) -> None:
    """One file of each kind of trouble."""
    camera.files[NAMES[2]] = b"no image"
    camera.files[NAMES[9]] = photograph(9, 200, 300)[:-40]
    camera.files[NAMES[16]] = photograph(16, 200, 300, "JPEG")[:-200]

    def absent(name: str) -> None:
        if name == NAMES[23]:
            raise FileNotFoundError(2, "No such file or directory")

    camera.before = absent


def test_an_unreadable_image_is_named(camera: Camera, config: DataConfig) -> None:
    broken(camera)
    with pytest.raises(UserError, match=r"image '02.png' is no image.*--on-unreadable skip"):
        open_dataset(config)
    assert locate(config).folder.exists() is False


@pytest.mark.parametrize("victim", [2, 9, 16, 23])
def test_each_trouble_is_found(camera: Camera, config: DataConfig, victim: int) -> None:
    broken(camera)
    for other in {2, 9, 16} - {victim}:
        camera.files[NAMES[other]] = photograph(other)
    if victim != 23:
        camera.before = lambda name: None
    with pytest.raises(UserError, match=f"image '{NAMES[victim]}'"):
        open_dataset(config)


def test_unreadable_images_are_skipped_counted_and_listed(camera: Camera, config: DataConfig) -> None:
    """First refused at image 2, nothing is kept; then skipped, with the labels of those that are left."""
    broken(camera)
    place = locate(config)
    with pytest.raises(UserError):
        prepare(place, "raise", Progress(live=False))
    assert prepare(place, "skip", Progress(live=False))
    train, test = open_dataset(config)
    left = [i for i in range(30) if i not in (2, 9, 16, 23)]
    assert train.labels.tolist() == [i % 3 for i in left]
    assert bytes(train.images[2]) == camera.files[NAMES[3]]
    assert len(test) == 3
    card = read_card(place.folder)
    skipped = card["splits"]["train"]["skipped"]
    assert [one["name"] for one in skipped] == [NAMES[i] for i in (2, 9, 16, 23)]
    assert "No such file" in skipped[3]["reason"]
    assert card["splits"]["test"]["skipped"] == []
    readable = (place.folder / "card.md").read_text()
    assert "left out, unreadable: 4" in readable
    assert "16.png can't be decoded" in readable


def test_a_skipping_preparation_is_not_taken_over_by_a_strict_one(camera: Camera, config: DataConfig) -> None:
    broken(camera)
    camera.before = lambda name: (_ for _ in ()).throw(KeyboardInterrupt) if name == NAMES[25] else None
    place = locate(config)
    with pytest.raises(KeyboardInterrupt):
        prepare(place, "skip", Progress(live=False))
    with pytest.raises(UserError, match=r"02.png"):
        prepare(place, "raise", Progress(live=False))


def test_the_card_says_what_there_is(
    camera: Camera, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera.files[NAMES[0]] = photograph(0, 5, 4)
    domains = np.arange(30) % 2
    train = split(camera, NAMES, domains=domains, groups=np.arange(30) // 2)
    test = split(camera, TEST, domains=np.zeros(3, dtype=np.int64), groups=np.array([40, 41, 41]))
    built = {"class_names": ("mole", "wart", "scar"), "domain_names": ("Graz", "Wien")}
    monkeypatch.setitem(DATASETS, "pictures", row(train, test, licence="CC0", **built))
    opened, tests = open_dataset(config)
    assert opened.domains is not None
    assert opened.domains.tolist() == domains.tolist()
    assert opened.groups is not None
    assert opened.groups.tolist() == [i // 2 for i in range(30)]
    assert (opened.class_names, opened.domain_names) == (built["class_names"], built["domain_names"])
    assert tests.groups is not None
    card = read_card(opened.path.parent)
    assert card["licence"] == "CC0"
    found = card["splits"]["train"]
    assert found["classes"] == {"mole": 10, "wart": 10, "scar": 10}
    assert found["domains"] == {"Graz": 15, "Wien": 15}
    assert found["groups"] == 15
    assert found["sizes"] == {
        "different": 2,
        "commonest": [
            {"width": 30, "height": 20, "images": 29},
            {"width": 4, "height": 5, "images": 1},
        ],
        "width": [4, 30],
        "height": [5, 20],
    }
    assert card["splits"]["test"]["domains"] == {"Graz": 3, "Wien": 0}
    assert card["normalisation"]["how"] == "computed from all training images"
    readable = (opened.path.parent / "card.md").read_text()
    for part in ("mole 10", "Graz 15", "2 different, 30x20 the commonest", "CC0", "photographs of a test"):
        assert part in readable


def test_own_names(
    camera: Camera, config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A general layout goes by its folder's name or by --as; later data.name alone is enough."""
    source = tmp_path / "pets"
    source.mkdir()
    info = row(split(camera, NAMES), split(camera, TEST), needs_source=True)
    monkeypatch.setitem(DATASETS, "pictures", info)
    root = config.root
    with pytest.raises(UserError, match=r"isn't prepared.*photographs.zip.*rayfl data prepare pictures"):
        open_dataset(config)
    with pytest.raises(UserError, match=r"only its files tell"):
        outline(DataConfig(name="pictures", root=root, source=str(source)))
    train, _ = open_dataset(DataConfig(name="pictures", root=root, source=str(source)))
    assert (train.name, train.path.parent) == ("pets", Path(root or "") / "pets")
    assert open_dataset(DataConfig(name="pets", root=root))[0] is train
    assert outline(DataConfig(name="pets", root=root)).shape == (3, 224, 224)
    assert outline(DataConfig(name="pets", root=root)).class_counts == (10, 10, 10)
    with pytest.raises(UserError, match="did you mean 'pets'"):
        open_dataset(DataConfig(name="pet", root=root))
    with pytest.raises(UserError, match="unknown dataset"):
        open_dataset(DataConfig(name="../root/pets", root=root))

    elsewhere = tmp_path / "other" / "pets"
    elsewhere.mkdir(parents=True)
    other = DataConfig(name="pictures", root=root, source=str(elsewhere))
    with pytest.raises(UserError, match=r"prepared from .*pets already.*--as OWN_NAME"):
        open_dataset(other)
    prepare(locate(other, "cats.2"), "raise", Progress(live=False))
    assert open_dataset(DataConfig(name="cats.2", root=root))[0].name == "cats.2"
    for bad in ("mnist5k", "a/b", "..", ""):
        with pytest.raises(UserError, match="can't name this dataset"):
            locate(other, bad)


def test_a_damaged_own_copy_is_made_again_from_where_it_came(
    camera: Camera, config: DataConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = locate(DataConfig(name="pictures", root=config.root, source=str(tmp_path)), "mine")
    prepare(place, "raise", Progress(live=False))
    (place.folder / "test.arrow").write_bytes(b"gone")
    train, test = open_dataset(DataConfig(name="mine", root=config.root))
    assert (len(train), len(test)) == (30, 3)
    assert "preparing it again" in caplog.text
    assert json.loads((place.folder / "meta.json").read_text())["source"] == str(tmp_path)


def test_a_source_that_is_not_there(camera: Camera, config: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing at .*/nowhere: put photographs.zip there, then: rayfl"):
        open_dataset(DataConfig(name="pictures", root=config.root, source=str(tmp_path / "nowhere")))


def test_a_set_without_a_readable_image(
    camera: Camera, config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera.files.update(dict.fromkeys(TEST, encode(np.zeros((2, 2)))[:20]))
    with pytest.raises(UserError, match="no test image"):
        prepare(locate(config), "skip", Progress(live=False))


def test_progress_speaks_rarely_and_says_where_it_went_on(
    camera: Camera, config: DataConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before(camera, NAMES[17])
    with pytest.raises(KeyboardInterrupt):
        open_dataset(config)
    assert capsys.readouterr().err == ""
    camera.before = lambda name: None
    monkeypatch.setattr("rayfl.data.progress._EVERY_S", 0.0)
    open_dataset(config)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rayfl: pictures/train: going on after 14 of 30 images"
    assert lines[1].startswith("rayfl: pictures/train: 21/30 images, ")
    assert lines[-1].startswith("rayfl: pictures/test: 3/3 images, ")
