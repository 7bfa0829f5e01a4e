"""``rayfl data``: prepare, list, info; one-line errors and JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rayfl import cli
from rayfl.data import DATASETS, DataConfig, SyntheticConfig, open_dataset

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Call the command line in a folder of its own: code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path / "root"))

    def do(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main(arguments), *capsys.readouterr()

    return do


def last(out: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(out.splitlines()[-1])
    return content


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder per class with eleven photographs each, one of them torn."""
    folder = tmp_path / "pets"
    for k, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(11):
            pixels = np.full((12, 10, 3), 20 * i + k, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:02d}.png")
    torn = folder / "dog" / "03.png"
    torn.write_bytes(torn.read_bytes()[:-30])
    return folder


def test_a_bundled_set_from_unknown_to_prepared(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("data", "info", "digits")
    assert code == 0
    assert "- shape: (1, 8, 8)" in out
    assert "- num train: 1437" in out
    assert out.endswith("\n  rayfl data prepare digits\n")
    before = last(call("data", "info", "digits", "--json")[1])
    assert (before["prepared"], before["num_test"], before["command"]) == (
        False,
        360,
        "rayfl data prepare digits",
    )

    code, out, err = call("data", "prepare", "digits")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"digits: 1437 train + 360 test images in {tmp_path / 'root' / 'digits'}",
        "use it with: data.name=digits",
    ]
    assert "prepared before" in call("data", "prepare", "digits")[1]
    again = last(call("data", "prepare", "digits", "--json")[1])
    assert (again["made"], again["skipped"]) == (False, 0)

    code, out, _ = call("data", "info", "digits")
    assert out.startswith("# digits\n")
    assert "- classes: 0 142, 1 145" in out
    shown = last(call("data", "info", "digits", "--json")[1])
    assert shown["card"]["splits"]["test"]["images"] == 360
    assert shown["prepared"] is True


def test_own_files_under_an_own_name(call: Call, pets: Path, tmp_path: Path) -> None:
    prepare = ["data", "prepare", "imagefolder", "--source", str(pets), "--as", "mine"]
    code, out, err = call(*prepare)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("rayfl: error: image '")
    assert "dog/03.png" in line
    assert "--on-unreadable skip" in line

    code, out, _ = call(*prepare, "--on-unreadable", "skip", "--root", "elsewhere")
    assert code == 0
    assert "left out 1 image that couldn't be read: rayfl data info mine" in out
    train, test = open_dataset(DataConfig(name="mine", root=str(tmp_path / "elsewhere"), image_size=8))
    assert len(train) + len(test) == 21
    assert train.class_names == ("cat", "dog")
    assert "03.png" in call("data", "info", "mine", "--root", "elsewhere")[1]
    rows = {
        row["name"]: row for row in last(call("data", "list", "--json", "--root", "elsewhere")[1])["datasets"]
    }
    assert rows["mine"]["prepared"]
    assert rows["mine"]["bytes"] > 1000
    assert str(pets) in rows["mine"]["description"]


def test_a_partition_names_the_classes(call: Call, pets: Path) -> None:
    (pets / "dog").rename(pets / "a_dog_of_a_long_name")
    call("data", "prepare", "imagefolder", "--source", str(pets), "--as", "mine", "--on-unreadable", "skip")
    settings = ["data.name=mine", "data.num_clients=2", "data.partition={kind: iid, min_size: 1}"]
    code, out, _ = call("partition", "fedavg.digits", *settings)
    assert code == 0
    assert out.splitlines()[0].split() == ["client", "samples", "a_dog_of_a_l", "cat"]


def test_an_interrupted_preparation_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayfl.data.prepare", interrupted)
    code, _, err = call("data", "prepare", "digits", "--root", "else where")
    assert code == 130
    again = "rayfl data prepare digits --root 'else where'"
    assert err == f"rayfl: interrupted: {again} goes on with what is done so far\n"


def test_list_has_every_dataset_and_what_is_prepared(call: Call, tmp_path: Path) -> None:
    synthetic = SyntheticConfig(num_train=20, num_test=10)
    open_dataset(DataConfig(name="synthetic", root=str(tmp_path / "root"), synthetic=synthetic))
    code, out, _ = call("data", "list")
    assert code == 0
    states = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert states.keys() == DATASETS.keys()
    assert {name for name, state in states.items() if state != "-"} == {"synthetic"}
    rows = last(call("data", "--json", "list")[1])["datasets"]
    assert [row["name"] for row in rows if row["prepared"]] == ["synthetic"]
    assert all(row["description"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["data"], "action"),
        (["data", "prepar"], "did you mean 'prepare'?"),
        (["data", "prepare"], "NAME"),
        (["data", "prepare", "mnist5"], "did you mean 'mnist5k'?"),
        (["data", "info", "mnist5"], "did you mean 'mnist5k'?"),
        (["data", "prepare", "digits", "--sourc", "x"], "did you mean '--source'?"),
        (["data", "prepare", "digits", "--on-unread", "skip"], "did you mean '--on-unreadable'?"),
        (["data", "prepare", "digits", "--on-unreadable", "skp"], "did you mean 'skip'?"),
        (["data", "prepare", "digits", "x"], "'x'"),
        (["data", "prepare", "imagefolder"], "rayfl data prepare imagefolder --source PATH"),
        (["data", "prepare", "imagefolder", "--source", "none"], "there is nothing at"),
        (
            ["data", "prepare", "imagefolder", "--source", ".", "--as", "digits"],
            "rayfl has a dataset of that name",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(call: Call, arguments: list[str], part: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("rayfl: error: ")
    assert part in line


@pytest.mark.parametrize("action", [[], ["prepare"], ["list"], ["info"]])
def test_help_has_examples(call: Call, action: list[str]) -> None:
    code, out, err = call("data", *action, "--help")
    assert (code, err) == (0, "")
    assert f"\n  rayfl data {' '.join(action)}" in out.split("examples:")[1]


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom rayfl.cli import main\nassert main(['data', 'prepare', '--help']) == 0\n"
        "print(sorted({'torch', 'ray', 'numpy', 'pyarrow', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
