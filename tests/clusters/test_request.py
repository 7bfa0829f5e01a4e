"""What may be submitted, what is refused before anything is sent, and which files it names."""

import sys
from pathlib import Path

import pytest

from rayfl.clusters.request import check_sent, read_request
from rayfl.errors import UserError


def test_a_run_keeps_its_arguments_and_gets_a_folder_for_results() -> None:
    asked = read_request(["--", "run", "fedavg.digits", "rounds=1", "--quiet"])
    assert asked.out == "~/rayfl-results"
    assert asked.arguments == ("run", "fedavg.digits", "rounds=1", "--quiet", "--out", "~/rayfl-results")
    assert asked.command == "rayfl run fedavg.digits rounds=1 --quiet --out '~/rayfl-results'"


def test_a_whole_path_for_results_is_kept() -> None:
    asked = read_request(["run", "fedavg.digits", "--out", "/shared/results"])
    assert (asked.out, asked.arguments) == (
        "/shared/results",
        ("run", "fedavg.digits", "--out", "/shared/results"),
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "nothing to submit"),
        (["--"], "nothing to submit"),
        (["swep", "x.yaml"], "did you mean 'sweep'"),
        (["--address", "run"], "options of submit stand before --"),
        (["run"], "SOURCE"),
        (["run", "fedavg.digits", "--resum"], "did you mean '--resume'"),
        (["run", "fedavg.digits", "--out", "results"], "/shared/results"),
    ],
)
def test_what_is_no_command_is_refused(arguments: list[str], part: str) -> None:
    with pytest.raises(UserError) as caught:
        read_request(arguments)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "fedavg.digit"], "did you mean 'fedavg.digits'"),
        (["run", "fedavg.digits", "lr=0.1"], "algorithm.lr"),
        (["sweep", "grids/grid.yaml", "rounds=-1"], "rounds must be"),
        (["run", "grids/grid.yaml"], "use rayfl sweep"),
        (["tune", "none.yaml"], "No such file"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_cant_be_meant_is_refused_here(arguments: list[str], part: str) -> None:
    with pytest.raises(UserError) as caught:
        read_request(arguments).check()
    assert part in str(caught.value)


@pytest.mark.usefixtures("project")
def test_all_cells_of_a_sweep_are_checked() -> None:
    asked = read_request(["sweep", "grids/grid.yaml", "--with", "extra.yaml"])
    assert [config.rounds for config in asked.check()] == [1, 1]


@pytest.mark.usefixtures("project")
def test_files_are_followed_to_what_they_start_from() -> None:
    asked = read_request(["sweep", "./grids/grid.yaml", "--with", "extra.yaml", "rounds=2"])
    assert asked.files() == ["grids/grid.yaml", "extra.yaml", "base.yaml"]
    asked = read_request(["sweep", "grids/grid.yaml", "preset=extra.yaml"])
    assert asked.files() == ["grids/grid.yaml", "extra.yaml", "base.yaml"]
    assert read_request(["run", "fedavg.digits"]).files() == []


def test_files_from_elsewhere_are_refused(project: Path) -> None:
    """They could not have their place on the cluster."""
    for file in ("../outside.yaml", str(project / "base.yaml")):
        with pytest.raises(UserError, match="name it from here"):
            read_request(["run", file]).files()
    Path("far.yaml").write_text("preset: ../outside.yaml\n")
    with pytest.raises(UserError, match="name it from here"):
        read_request(["run", "far.yaml"]).files()
    with pytest.raises(UserError, match="no such file"):
        read_request(["run", "none.yaml"]).files()


@pytest.fixture
def kept(project: Path) -> Path:
    """A partition file in the folder, and searches and sweeps that name it in different places."""
    from rayfl import cli

    assert cli.main(["partition", "fedavg.digits", "--save", "who.npz"]) == 0
    law = "{kind: file, path: who.npz}"
    for name, text in {
        "grid.yaml": f"grid: {{data.partition: [{{kind: iid}}, {law}]}}",
        "when.yaml": f"grid: {{seed: [0, 1]}}\nwhen: [{{if: {{seed: 1}}, set: {{data.partition: {law}}}}}]",
        "set.yaml": f"set: {{data.partition: {law}}}\nsearch: {{algorithm.lr: {{uniform: [0.1, 1]}}}}",
        "drawn.yaml": f"search: {{data.partition: {{choice: [{{kind: iid}}, {law}]}}}}",
        "narrow.yaml": "set: {data.partition.kind: file}\nsearch: {data.partition.path: {choice: [who.npz]}}",
    }.items():
        Path(name).write_text(f"preset: fedavg.digits\n{text}\n")
    return project


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "fedavg.digits", "data.partition={kind: file, path: ./who.npz}"],
        ["sweep", "grid.yaml"],
        ["sweep", "when.yaml"],
        ["sweep", "grids/grid.yaml", "data.partition={kind: file, path: who.npz}"],
        ["tune", "set.yaml"],
        ["tune", "drawn.yaml"],
        ["tune", "narrow.yaml"],
        ["tune", "drawn.yaml", "search.data.partition=null", "search.algorithm.lr={uniform: [0.1, 1]}",
         "data.partition={kind: file, path: who.npz}"],
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kept")
def test_a_file_that_would_stay_behind_is_named(arguments: list[str]) -> None:
    """Wherever a run, a sweep or a search says that it reads it, also if only one of many cells does."""
    asked = read_request(arguments)
    configs = asked.check()
    with pytest.raises(
        UserError, match=r"data\.partition\.path=who\.npz stays behind: .*--with-file who\.npz"
    ):
        check_sent(asked, configs, asked.files())
    assert check_sent(asked, configs, [*asked.files(), "who.npz"]) == []


@pytest.mark.usefixtures("kept")
def test_a_partition_file_that_is_not_read_may_stay() -> None:
    asked = read_request(["run", "fedavg.digits", "data.partition.path=who.npz"])
    assert check_sent(asked, asked.check(), []) == []


def test_weights_stay_behind_likewise(project: Path) -> None:
    Path("first.pt").touch()
    (project.parent / "second.pt").touch()
    asked = read_request(["run", "fedavg.digits", "model.weights=first.pt"])
    with pytest.raises(UserError, match=r"model\.weights=first\.pt stays behind: .*--with-file first\.pt"):
        check_sent(asked, asked.check(), [])
    asked = read_request(["sweep", "grids/grid.yaml", "grid.model.weights=[null, ../second.pt]"])
    with pytest.raises(UserError, match=r"model\.weights=\.\./second\.pt .*not in this folder: copy it"):
        check_sent(asked, asked.check(), [])


def test_a_whole_path_is_the_clusters(project: Path) -> None:
    """The file need not be sent then, wherever it is here; each is told of once."""
    first, second = project / "first.pt", project.parent / "second.pt"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    Path("both.yaml").write_text(
        f"preset: fedavg.digits\ngrid: {{seed: [0, 1], model.weights: ['{second}']}}"
    )
    asked = read_request(["sweep", "both.yaml"])
    assert check_sent(asked, asked.check(), []) == [f"model.weights={second}"]
    asked = read_request(["run", "fedavg.digits", f"model.weights={project}/./first.pt"])
    assert check_sent(asked, asked.check(), []) == [f"model.weights={first}"]


def test_a_module_of_ones_own_is_found(project: Path) -> None:
    configs = read_request(["run", "fedavg.digits", "algorithm.name=my_method:Mine"]).check()
    assert configs[0].algorithm.name == "my_method:Mine"
    for name in ("my_method", "my_helper"):
        del sys.modules[name]
