"""``rayfl partition`` where a set has domains and an experiment has an edge map."""

import json
from pathlib import Path

import pytest

from rayfl import cli

SMALL = [
    "fedavg.digits", "data.name=synthetic", "data.num_clients=6", "data.num_edges=3", "data.edge_map=domain",
    "data.synthetic={num_train: 120, num_test: 30, num_classes: 3, height: 4, width: 4, num_domains: 3}",
    "data.partition={kind: domain, min_size: 5}",
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path_factory.getbasetemp() / "rayfl-data"))


def test_it_shows_domains_and_edges(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", *SMALL, "--save", "p.npz", "--picture", "p.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-6:] == ["domain", "0", "domain", "1", "domain", "2"]
    assert [line.split()[1] for line in lines[1:7]] == ["0", "0", "1", "1", "2", "2"]
    assert [line.split()[-3:].index(".") for line in lines[1:7]] == [1, 1, 0, 0, 0, 0]
    assert lines[7].endswith("1.0 domains each")
    assert lines[8].startswith("3 edges, ")
    assert "domain" in Path("p.svg").read_text()
    assert cli.main(["partition", *SMALL, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["edges"] == [0, 0, 1, 1, 2, 2]
    assert [sum(counts) for counts in shown["domains"]] == shown["sizes"]
    assert [sum(counts) for counts in shown["edge_counts"]] == [
        sum(shown["sizes"][i : i + 2]) for i in (0, 2, 4)
    ]
    assert shown["within_edge_variation"] < 0.3
    stored = ["data.partition={kind: file, path: p.npz}", "data.edge_map=blocks", "--json"]
    assert cli.main(["partition", *SMALL[:-1], *stored]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["edges"], again["partition_hash"]) == (shown["edges"], shown["partition_hash"])


def test_an_unknown_picture_type_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", *SMALL, "--picture", "x.foo"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "rayfl: error: picture x.foo has unknown type '.foo': name it .png, .pdf or .svg"
    assert not Path("x.foo").exists()


def test_ratios_are_checked_with_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["partition", *SMALL, "data.partition={kind: dominant, dominant_ratio: 1.5}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.partition.dominant_ratio" in line
