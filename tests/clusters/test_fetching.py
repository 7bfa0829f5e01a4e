"""Results on their way home: what is taken, that it comes whole, and that it lands nowhere else."""

import io
import zipfile
from pathlib import Path

import pytest

from rayfl.clusters import fetching
from rayfl.clusters.fetching import content_of, unpack
from rayfl.clusters.remote import collect
from rayfl.errors import RunFailed

CELL = "cells/0123456789ab"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output folder of a sweep."""
    folder = tmp_path / "out"
    for place in (
        "demo.md",
        f"{CELL}/result.json",
        f"{CELL}/config.json",
        f"{CELL}/ledger.parquet",
        f"{CELL}/clients.csv",
        f"{CELL}/weights.pt",
        f"{CELL}/checkpoint-000005.pt",
        f"{CELL}/.result.json.123",
        f"{CELL}/.half.json",
        "partitions/abc.png",
        "mlflow.db",
        "mlartifacts/0/model.json",
        ".tune-demo/trial/params.json",
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(place)
    (folder / "elsewhere.json").symlink_to("/etc/hostname")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("weights", [False, True])
def test_results_come_home_as_they_are(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: bool
) -> None:
    """Through the log of the job that collects them, between whatever else is printed there."""
    assert collect.main(out, fetching.LIMIT, weights) == 0
    printed = f"Running entrypoint for job x\n{capsys.readouterr().out}\nbye\n"
    written = unpack(content_of(printed), tmp_path / "home")
    assert sorted(path.relative_to(tmp_path / "home").as_posix() for path in written) == names(
        tmp_path / "home"
    )
    wanted = [f"{CELL}/{name}" for name in ("clients.csv", "config.json", "ledger.parquet", "result.json")]
    wanted += [f"{CELL}/weights.pt"] if weights else []
    assert names(tmp_path / "home") == [*wanted, "demo.md", "partitions/abc.png"]
    assert (tmp_path / "home" / "demo.md").read_text() == "demo.md"


def test_long_results_are_cut_into_lines(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "LINE", 50)
    collect.main(out, fetching.LIMIT, False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[1:])) == 50
    assert zipfile.is_zipfile(io.BytesIO(content_of(printed)))


def test_nothing_there_and_too_much_there_are_said(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect.main(tmp_path / "none", fetching.LIMIT, False) == 2
    with pytest.raises(RunFailed, match=r"^no results in .*none"):
        content_of(capsys.readouterr().out)
    assert collect.main(out, 10, False) == 2
    with pytest.raises(RunFailed, match=r"more than the 0 MB .*the largest is "):
        content_of(capsys.readouterr().out)


def test_damaged_results_are_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect.main(out, fetching.LIMIT, False)
    first, line, *rest = capsys.readouterr().out.splitlines()
    swapped = line[:40] + ("A" if line[40] != "A" else "B") + line[41:]
    for broken in (swapped, line[:-1], "?" + line[1:]):
        with pytest.raises(RunFailed, match="damaged"):
            content_of("\n".join([first, broken, *rest]))
    with pytest.raises(RunFailed, match="collects the results failed"):
        content_of("\n".join([first, line]))


@pytest.mark.parametrize("name", ["../up.json", "/abs.json", "a/../../up.json", "..\\up.json", "C:up.json"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(RunFailed, match="would land elsewhere"):
        unpack(buffer.getvalue(), tmp_path / "home")
    assert names(tmp_path) == []


def test_a_link_in_the_folder_leads_nowhere_either(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cells").symlink_to(tmp_path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("cells/x.json", b"x")
    with pytest.raises(RunFailed, match="would land elsewhere"):
        unpack(buffer.getvalue(), tmp_path / "home")
    assert not (tmp_path / "x.json").exists()


def test_an_archive_that_swells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LIMIT", 1000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.json", bytes(1001))
    with pytest.raises(RunFailed, match="more than"):
        unpack(buffer.getvalue(), tmp_path / "home")
    assert names(tmp_path) == []
