"""Every preset loads, says what to expect, and runs for a round when made small."""

import itertools
import re
from pathlib import Path

import pytest

from rayfl.algorithms import ALGORITHMS
from rayfl.experiment import Experiment
from rayfl.loading.experiments import load_experiment
from rayfl.loading.layers import read_yaml
from rayfl.loading.searches import load_search
from rayfl.loading.sources import presets
from rayfl.loading.sweeps import load_sweep
from rayfl.search.checks import check_search

ROOT = Path(__file__).parent.parent
SETTINGS = ("mnist5k", "digits")
COMMON = sorted(f"{method}.{setting}" for method in ALGORITHMS for setting in SETTINGS)
OF_PAPERS = [name for name in presets() if name not in COMMON]
SMOKE = [
    "rounds=1",
    "data.name=synthetic",
    "data.synthetic={num_train: 60, num_test: 20, num_classes: 3, height: 8, width: 8}",
    "data.num_clients=3",
    "data.partition.min_size=5",
]


@pytest.fixture(autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYFL_DATA", str(tmp_path_factory.getbasetemp() / "rayfl-data"))


def test_every_method_has_its_presets() -> None:
    assert set(COMMON) <= set(presets())
    assert {name.split(".")[0] for name in presets()} == set(ALGORITHMS)


@pytest.mark.parametrize("name", OF_PAPERS)
def test_a_papers_preset_is_its_methods_and_has_its_protocol(name: str) -> None:
    method, setting = name.split(".")
    config = load_experiment(name)
    assert config.algorithm.name == method
    assert config.data.name.replace("_", "") == setting.split("_")[0]
    assert config.data.partition.kind in ("iid", "domain" if "domainnet" in name else "dirichlet")
    if name.endswith("dir01"):
        assert (config.data.partition.alpha, config.data.partition.scheme) == (0.1, "hsu")
    text = (ROOT / "rayfl" / "presets" / f"{name}.yaml").read_text()
    assert "Not run here" in text or "docs/results.md" in text


@pytest.mark.parametrize("name", COMMON)
def test_a_preset_is_its_methods_own_and_says_what_to_expect(name: str) -> None:
    method, setting = name.split(".")
    config = load_experiment(name)
    assert (config.algorithm.name, config.data.name) == (method, setting)
    header = [
        line
        for line in (ROOT / "rayfl" / "presets" / f"{name}.yaml").read_text().splitlines()
        if line.startswith("#")
    ]
    text = " ".join(header)
    assert re.search(rf"about 0\.\d\d after {config.rounds} rounds", text)
    assert f"alpha {config.data.partition.alpha:g}" in text
    assert f"seed {config.seed}" in text


@pytest.mark.parametrize("setting", SETTINGS)
def test_presets_of_a_setting_compare(setting: str) -> None:
    shared = []
    for method in ALGORITHMS:
        plain = load_experiment(f"{method}.{setting}").to_dict()
        algorithm = {key: plain["algorithm"][key] for key in ("lr", "momentum", "batch_size", "local_epochs")}
        shared.append({**plain, "algorithm": algorithm})
    assert all(other == shared[0] for other in shared)


@pytest.mark.parametrize("name", COMMON)
def test_a_preset_runs(name: str) -> None:
    experiment = Experiment(load_experiment(name, SMOKE))
    try:
        result = experiment.run()
    finally:
        experiment.close()
    assert (result.status, result.rounds) == ("FINISHED", 1)
    # It has trained: something was sent, and the model is another one than before.
    assert result.metrics["comm/total_bytes"] > 0
    assert result.history[0]["global/test_loss"] != result.history[1]["global/test_loss"]


FILES = sorted((ROOT / "tune_configs").glob("*.yaml"))
SEARCHES = [path.name for path in FILES if "search" in read_yaml(path)]


@pytest.mark.parametrize("file", SEARCHES)
def test_search_files_load(file: str) -> None:
    search = load_search(ROOT / "tune_configs" / file)
    check_search(search)
    assert search.name == file.removesuffix(".yaml")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(path.name, marks=pytest.mark.slow)
        if "_table" in path.name or "_figure" in path.name
        else path.name
        for path in FILES
        if path.name not in SEARCHES
    ],
)
def test_sweep_files_load(file: str) -> None:
    sweep = load_sweep(ROOT / "tune_configs" / file)
    assert sweep.name == file.removesuffix(".yaml")
    sizes = [len(values) for values in sweep.grid.values()]
    assert len(sweep.cells()) == len(list(itertools.product(*map(range, sizes))))


def test_the_demo_is_what_it_promises() -> None:
    cells = load_sweep(ROOT / "tune_configs" / "demo.yaml").cells()
    assert {cell.algorithm.name for cell in cells} == {"fedavg", "splitfed_v1", "mergesfl", "hsfl"}
    assert {(c.data.partition.kind, c.data.name) for c in cells} == {
        ("iid", "mnist5k"),
        ("dirichlet", "mnist5k"),
    }
    assert (len(cells), {cell.seed for cell in cells}) == (16, {0, 1})
