"""What goes along with a job and, above all, what does not."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayfl
from rayfl import __version__
from rayfl.clusters import parcel
from rayfl.errors import UserError


@pytest.fixture
def imported(project: Path) -> Iterator[None]:
    """As after the check of a request that names my_method:Mine."""
    names = ("my_method", "installed")
    for name in names:
        importlib.import_module(name)
    yield
    for name in (*names, "my_helper"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("imported")
def test_named_files_and_own_modules_and_nothing_else() -> None:
    """No data, no history, no environment below the folder, no results, no module that nobody asked for."""
    sent = parcel.pack(["grids/grid.yaml", "base.yaml"], ship_rayfl=False)
    assert sorted(sent) == ["base.yaml", "grids/grid.yaml", "my_helper.py", "my_method.py", parcel.CHECK]
    assert sent["base.yaml"] == b"preset: fedavg.digits\nrounds: 1\n"
    assert parcel.summary(sent).startswith("grids/grid.yaml, base.yaml, my_helper.py, my_method.py, ")


@pytest.mark.usefixtures("project")
def test_modules_of_a_package_keep_their_place() -> None:
    Path("mine/deep").mkdir(parents=True)
    for place in ("mine/__init__.py", "mine/deep/__init__.py", "mine/deep/method.py"):
        Path(place).touch()
    importlib.import_module("mine.deep.method")
    assert list(parcel.own_modules()) == ["mine/__init__.py", "mine/deep/__init__.py", "mine/deep/method.py"]
    for name in ("mine", "mine.deep", "mine.deep.method"):
        del sys.modules[name]


@pytest.mark.usefixtures("project")
def test_too_much_is_refused_naming_the_largest() -> None:
    Path("weights.pt").write_bytes(bytes(parcel.LIMIT))
    with pytest.raises(
        UserError, match=r"at most 5\.0 MB.*'weights\.pt' alone has 5\.0 MB: .*shared storage"
    ):
        parcel.pack(["base.yaml", "weights.pt"], ship_rayfl=False)


@pytest.mark.usefixtures("project")
def test_rayfl_is_shipped_with_its_version_and_requirements() -> None:
    sent = parcel.pack([], ship_rayfl=True)
    assert {"rayfl/__main__.py", "rayfl/presets/fedavg.digits.yaml", "rayfl/clusters/jobs.py"} <= set(sent)
    assert not [place for place in sent if "__pycache__" in place or place.endswith(".pyc")]
    record = sent[f"rayfl-{__version__}.dist-info/METADATA"].decode()
    assert f"\nVersion: {__version__}\n" in record
    assert "\nRequires-Dist: torch" in record
    assert parcel.summary(sent).startswith(f"rayfl {__version__}, ")


def test_of_rayfl_nothing_is_shipped_that_merely_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__pycache__").mkdir()
    for name in ("__init__.py", "preset.yaml", "py.typed", "notes.txt", "__pycache__/x.cpython-311.pyc"):
        (tmp_path / name).touch()
    monkeypatch.setattr(rayfl, "__file__", str(tmp_path / "__init__.py"))
    sent = [place for place in parcel.rayfl_itself() if place.startswith("rayfl/")]
    assert sent == ["rayfl/__init__.py", "rayfl/preset.yaml", "rayfl/py.typed"]


def test_a_parcel_is_written_out_as_it_is(tmp_path: Path) -> None:
    parcel.unpack({"a/b.py": b"1", "c": b"\0"}, tmp_path)
    assert (tmp_path / "a/b.py").read_bytes() == b"1"
    assert (tmp_path / "c").read_bytes() == b"\0"
