"""Configs: precedence, the override language, one-line refusals, sweeps."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig, SweepConfig
from rayfl.data import Partition, save_partition
from rayfl.errors import UserError
from rayfl.loading.experiments import dump, load_experiment
from rayfl.loading.layers import parse_override
from rayfl.loading.sources import presets
from rayfl.loading.sweeps import load_sweep

SWEEP: dict[str, Any] = {
    "grid": {
        "algorithm.name": ["fedavg", "fedprox", "hsfl"],
        "data.partition": [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.1}],
        "seed": [0, 1],
    },
    "set": {"rounds": 2, "algorithm.lr": 0.5},
}


def refusal(*overrides: str, source: Any = None) -> str:
    """The message of a config that can't be; it must be one line."""
    with pytest.raises(UserError) as caught:
        load_experiment({} if source is None else source, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sweep_refusal(*overrides: str, source: Any = None) -> str:
    with pytest.raises(UserError) as caught:
        load_sweep(SWEEP if source is None else source, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_is_the_defaults() -> None:
    assert load_experiment({}) == ExperimentConfig()


def test_later_layers_win_and_leave_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rounds: 3\nseed: 3\nalgorithm: {lr: 0.3, batch_size: 3}\n")
    (tmp_path / "b.yaml").write_text("seed: 4\nalgorithm.lr: 0.4\n")
    (tmp_path / "base.yaml").write_text("rounds: 2\nseed: 2\neval_every: 2\nalgorithm: {momentum: 0.2}\n")
    config = load_experiment(
        tmp_path / "base.yaml", ["algorithm.lr=0.5"], [tmp_path / "a.yaml", str(tmp_path / "b.yaml")]
    )
    assert (config.eval_every, config.rounds, config.seed) == (2, 3, 4)
    assert (config.algorithm.momentum, config.algorithm.batch_size, config.algorithm.lr) == (0.2, 3, 0.5)


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("preset: hsfl.digits\nrounds: 77\n")
    config, preset = load_experiment(tmp_path / "mine.yaml"), load_experiment("hsfl.digits")
    assert config == dataclasses.replace(preset, rounds=77)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=1e-3", 1e-3),
        ("k=-2.5E+4", -25000.0),
        ("k=0.05", 0.05),
        ("k=3", 3),
        ("k=true", True),
        ("k=null", None),
        ("k=my_module:MyMethod", "my_module:MyMethod"),
        ("k=e5", "e5"),
        ("k=[1e1, {a: 1e2}]", [10.0, {"a": 100.0}]),
        ("k=a=b", "a=b"),
    ],
)
def test_values_are_yaml_with_plain_exponents(text: str, value: object) -> None:
    key, parsed = parse_override(text)
    assert (key, parsed, type(parsed)) == ("k", value, type(value))


def test_overrides_may_be_a_mapping() -> None:
    """For callers in Python: the same keys, the same checks."""
    given = {"algorithm.lr": 0.1, "data": {"num_clients": 3}, "seed": 2}
    texts = ["algorithm.lr=0.1", "data.num_clients=3", "seed=2"]
    assert load_experiment({}, given) == load_experiment({}, texts)
    assert load_sweep(SWEEP, {"grid.seed": (5,)}) == load_sweep(SWEEP, ["grid.seed=[5]"])
    with pytest.raises(UserError, match="must be a list"):
        load_experiment({}, "seed=2")


def test_a_mapping_joins_what_is_there() -> None:
    config = load_experiment(
        {"data": {"partition": {"min_size": 3}}}, ["data.partition={kind: dirichlet, alpha: 0.1}"]
    )
    law = config.data.partition
    assert (law.kind, law.alpha, law.min_size) == ("dirichlet", 0.1, 3)


def test_lists_become_tuples_and_whole_numbers_become_floats() -> None:
    config = load_experiment({"targets": [0.5, 1]}, ["algorithm.name=hsfl", "algorithm.intervals=[2,3]"])
    assert config.targets == (0.5, 1.0)
    assert config.algorithm.intervals == (2, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rounds=3.5", ["rounds must be a whole number of at least 0", "got 3.5", "default is 10"]),
        ("rounds=3.0", ["got 3.0"]),
        ("rounds=true", ["got true"]),
        ("rounds='3'", ["got '3'"]),
        ("algorithm.lr=a", ["algorithm.lr must be a number above 0", "got 'a'"]),
        ("algorithm.lr=0", ["above 0", "got 0"]),
        ("algorithm.nesterov=1", ["true or false"]),
        ("data.partition.alpha=0", ["data.partition.alpha", "above 0"]),
        ("data.partition.alpha=-1", ["data.partition.alpha", "got -1"]),
        ("data.partition.alpha=.nan", ["data.partition.alpha", "finite"]),
        ("targets=[0.5, 2]", ["targets must be a list", "got [0.5, 2]"]),
        ("model.norm=grop", ["one of batch, group, none", "did you mean group?"]),
        ("model.width=0", ["model.width"]),
        ("model=cnn", ["did you mean model.name=cnn?"]),
        ("data.partition=dirichlet", ["data.partition.kind=dirichlet"]),
        ("lr=0.1", ["'lr'", "did you mean 'algorithm.lr'?"]),
        ("algorithm.learning_rate=0.1", ["did you mean 'algorithm.lr'?"]),
        ("clients=5", ["did you mean 'data.num_clients'?"]),
        ("dataset=digits", ["did you mean 'data.name'?"]),
        ("alpha=0.1", ["did you mean 'data.partition.alpha'?"]),
        ("data.alpha=0.1", ["did you mean 'data.partition.alpha'?"]),
        ("algorithm.optimiser=adam", ["did you mean 'algorithm.optimizer'?"]),
        ("algorithm.mu=1", ["FedAvg has no such knob", "fedprox would"]),
        ("zzz=1", ["known here: rounds"]),
        ("algorithm.name=fedprx", ["did you mean 'fedprox'?"]),
        ("data.name=mnist5", ["did you mean 'mnist5k'?"]),
        ("model.name=cn", ["did you mean 'cnn'?"]),
        ("rounds", ["key=value"]),
        ("rounds=[", ["YAML"]),
        ("fleet.gpus_per_actor=1.5", ["use 1 or 2"]),
        ("fleet.gpus_per_server=5.33", ["use 5 or 6"]),
        ("algorithm.nesterov=true", ["momentum"]),
        ("train.device=gpu", ["cpu, cuda or cuda:<n>"]),
        ("algorithm={name: hsfl, intervals: [2]}", ["algorithm.intervals must be a list of 2", "got [2]"]),
    ],
)
def test_a_refusal_names_key_wish_and_remedy(override: str, parts: list[str]) -> None:
    message = refusal(override)
    assert [part for part in parts if part not in message] == [], message


def test_all_errors_are_counted_in_one_line() -> None:
    message = refusal("rounds=-1", "seed=a", "algorithm.lr=0")
    assert message.startswith("rounds must be")
    assert message.endswith("(and 2 more: seed, algorithm.lr)")
    assert "(and 1 more: bar)" in refusal("foo=1", "bar=2")


def test_settings_that_exclude_each_other() -> None:
    assert "exclude each other" in refusal("fleet.client_actors=2", "fleet.clients_per_actor=1")
    ray = refusal("train.device=cuda", "fleet.kind=ray")
    assert "fleet.gpus_per_actor=0.5" in ray
    load_experiment({}, ["train.device=cuda", "fleet.kind=ray", "fleet.gpus_per_actor=0.5"])


def test_another_method_drops_the_presets_knobs_but_not_the_users(caplog: pytest.LogCaptureFixture) -> None:
    preset = {"algorithm": {"name": "fedprox", "mu": 0.5, "lr": 0.3}}
    with caplog.at_level(logging.WARNING, "rayfl"):
        config = load_experiment(preset, ["algorithm.name=fedavg"])
    assert type(config.algorithm) is ALGORITHMS["fedavg"].Config
    assert config.algorithm.lr == 0.3
    assert ["algorithm.mu" in record.getMessage() for record in caplog.records] == [True]
    assert "fedprox would" in refusal("algorithm.name=fedavg", "algorithm.mu=1", source=preset)
    assert "algorithm.muu" in refusal("algorithm.name=fedavg", source={"algorithm": {"muu": 1}})


def test_a_configs_own_defaults_do_not_follow_into_another_method(caplog: pytest.LogCaptureFixture) -> None:
    merged = load_experiment({}, ["algorithm.name=mergesfl", "algorithm.lr=0.3"])
    assert merged.algorithm.weights == "batch"
    config = load_experiment(merged, ["algorithm.name=fedavg"])
    assert (config.algorithm.weights, config.algorithm.lr) == ("size", 0.3)
    assert not caplog.records


def test_a_backbone_that_keeps_the_presets_form_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    """Half a ResNet with GroupNorm must not pass for ResNet-18; whoever names the form means it."""
    config = load_experiment("fedavg.mnist5k", ["model.name=resnet18", "model.norm=batch"])
    assert (config.model.width, config.model.norm) == (0.5, "batch")
    assert (
        "model.width=0.5 holds for model.name=resnet18 too; as published it is model.width=1.0" in caplog.text
    )
    assert "model.norm" not in caplog.text
    caplog.clear()
    load_experiment("fedavg.mnist5k", ["model={name: resnet18, width: 1.0, norm: batch}"])
    load_experiment("fedavg.mnist5k", ["model.name=cnn"])
    assert caplog.text == ""


def test_alpha_without_a_law_that_has_one_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    load_experiment({}, ["data.partition.alpha=0.1"])
    assert "no effect" in caplog.text


@pytest.mark.parametrize("method", ALGORITHMS)
def test_dump_loads_back(method: str, tmp_path: Path) -> None:
    config = load_experiment({"targets": [0.5]}, [f"algorithm.name={method}", "algorithm.lr=1e-5"])
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load_experiment(tmp_path / "config.yaml") == config
    assert load_experiment(yaml.safe_load(dump(config))).cell_hash == config.cell_hash


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("rounds: [1\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "empty.yaml").write_text("data:\nmodel: {}\n")
    assert "No such file" in refusal(source=tmp_path / "none.yaml")
    assert "line" in refusal(source=tmp_path / "bad.yaml")
    assert "keys and values" in refusal(source=tmp_path / "list.yaml")
    assert "not text" in refusal(source=tmp_path / "binary.yaml")
    assert load_experiment(tmp_path / "empty.yaml") == ExperimentConfig()
    (tmp_path / "twice.yaml").write_text("algorithm:\n  lr: 0.1\n  lr: 0.2\n")
    (tmp_path / "date.yaml").write_text("rounds: 2012-13-45\n")
    (tmp_path / "deep.yaml").write_text(f"rounds: {'[' * 3000}{']' * 3000}")
    (tmp_path / "ring.yaml").write_text("rounds: &a [*a]\n")
    assert "'lr' is there twice, line 3" in refusal(source=tmp_path / "twice.yaml")
    assert "month must be in" in refusal(source=tmp_path / "date.yaml")
    assert "nested too deeply" in refusal(source=tmp_path / "deep.yaml")
    assert "nested too deeply" in refusal(source=tmp_path / "ring.yaml")
    (tmp_path / "folder.yaml").mkdir()
    assert refusal(source=tmp_path / "folder.yaml").endswith("Is a directory")
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(f"preset: {other}\n")
    other.write_text(f"preset: {one}\n")
    assert "presets start from each other" in refusal(source=one)
    assert "did you mean 'hsfl.mnist5k'?" in refusal(source="hsfl.mnist5")
    assert "rayfl sweep" in refusal(source=SWEEP)


def test_off_is_a_word_where_it_is_one_of_several() -> None:
    """YAML reads it as false, which it stays elsewhere."""
    off = ["algorithm.bcc.mode=off", "algorithm.dtd.enabled=off"]
    found = load_experiment("besplit.digits", off).algorithm
    assert (found.bcc.mode, found.dtd.enabled) == ("off", False)  # type: ignore[attr-defined]
    assert "must be one of 4x4, gap" in refusal("algorithm.dtd.aux_pool=off", source="besplit.digits")


def test_a_users_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_method_of_a_test.py").write_text(
        "from dataclasses import dataclass\nfrom rayfl.algorithms.fedavg import FedAvg\n\n\n"
        "class Mine(FedAvg):\n    @dataclass(frozen=True, kw_only=True)\n    class Config(FedAvg.Config):\n"
        "        strength: float = 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = load_experiment({}, ["algorithm.name=own_method_of_a_test:Mine", "algorithm.strength=2"])
    assert config.algorithm.strength == 2.0  # type: ignore[attr-defined]
    assert load_experiment(yaml.safe_load(dump(config))) == config


def test_cells_come_in_grid_order_with_the_methods_own_defaults() -> None:
    cells = load_sweep(SWEEP).cells()
    seen = [(cell.algorithm.name, cell.data.partition.kind, cell.seed) for cell in cells]
    names, laws = ("fedavg", "fedprox", "hsfl"), ("iid", "dirichlet")
    assert seen == [(name, law, seed) for name in names for law in laws for seed in (0, 1)]
    assert {cell.rounds for cell in cells} == {2}
    assert [cell.algorithm.weights for cell in cells[::4]] == ["size", "size", "uniform"]


def test_a_cell_is_the_same_experiment_as_under_run() -> None:
    cell = load_sweep(SWEEP).cells()[-1]
    alone = load_experiment(
        {}, ["algorithm.name=hsfl", "algorithm.lr=0.5", "data.partition={kind: dirichlet, alpha: 0.1}",
             "seed=1", "rounds=2"]
    )  # fmt: skip
    assert cell == alone
    assert cell.cell_hash == alone.cell_hash


def test_knobs_that_only_some_methods_have_make_no_duplicates() -> None:
    sweep = load_sweep({"grid": {"algorithm.name": ["fedavg", "fedprox"], "algorithm.mu": [0.1, 0.2]}})
    cells = sweep.cells()
    assert [(cell.algorithm.name, getattr(cell.algorithm, "mu", None)) for cell in cells] == [
        ("fedavg", None),
        ("fedprox", 0.1),
        ("fedprox", 0.2),
    ]
    assert len({cell.cell_hash for cell in cells}) == 3


def test_when_comes_after_the_grid_and_before_the_user() -> None:
    rules = [
        {"if": {"algorithm.name": "hsfl", "data.partition.kind": "iid"}, "set": {"rounds": 7, "seed": 9}},
        {"if": {"algorithm.name": ["fedavg", "fedprox"], "data.name": "digits"}, "set": {"rounds": 8}},
    ]
    source = {**SWEEP, "when": rules}
    assert [cell.rounds for cell in load_sweep(source).cells()] == [2] * 8 + [7] + [2] * 2
    assert {cell.rounds for cell in load_sweep(source, ["rounds=5"]).cells()} == {5}
    digits = load_sweep(source, ["set.data.name=digits"]).cells()
    assert [cell.rounds for cell in digits] == [8] * 8 + [7] + [2] * 2


def test_overrides_edit_the_grid(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("train: {threads: 2}\ngrid: {seed: [5]}\nmax_concurrent: 3\n")
    sweep = load_sweep(
        SWEEP, ["grid.algorithm.name=null", "grid.algorithm.lr=[1e-2]"], [tmp_path / "gpu.yaml"]
    )
    cells = sweep.cells()
    assert [(cell.seed, cell.algorithm.lr, cell.train.threads) for cell in cells] == [(5, 0.01, 2)] * 2
    assert sweep.max_concurrent == 3


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("seed=1", "grid.seed="),
        ("data.partition.alpha=3", "grid.data.partition="),
        ("data={partition: {kind: iid}}", "grid.data.partition="),
        ("algorithm.muu=1", "did you mean 'algorithm.mu'?"),
        ("algorithm.cut_layer=1", "did you mean 'algorithm.cut_layers'?"),
        ("grid.lr=[1]", "did you mean 'algorithm.lr'?"),
        ("grid.seed=3", "must be a list"),
        ("grid.seed=[]", "must be a list"),
        ("max_concurrent=0", "max_concurrent"),
        ("name=a b", "name"),
        ("preset=nope.mnist5k", "unknown preset"),
        ("set.lr=1", "did you mean 'algorithm.lr'?"),
    ],
)
def test_a_sweeps_refusals(override: str, part: str) -> None:
    assert part in sweep_refusal(override)


def test_a_sweep_file_must_be_one(tmp_path: Path) -> None:
    assert "rayfl run" in sweep_refusal(source={"rounds": 3})
    assert "rayfl run" in sweep_refusal(source=presets()[0])
    assert "set: {rounds" in sweep_refusal(source={**SWEEP, "rounds": 3})
    assert "if" in sweep_refusal(source={**SWEEP, "when": [{"if": {"seed": 1}}]})
    assert "in when" in sweep_refusal(source={**SWEEP, "when": [{"if": {"sed": 1}, "set": {"rounds": 1}}]})
    (tmp_path / "my_grid.yaml").write_text("grid: {seed: [0, 1]}\n")
    assert load_sweep(tmp_path / "my_grid.yaml").name == "my_grid"


def test_a_sweep_made_in_python_is_checked_too() -> None:
    with pytest.raises(UserError, match="sed"):
        SweepConfig(name="x", grid={"sed": (0, 1)}).cells()


def test_a_partition_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    """Another file under the same name is another experiment; the same one elsewhere is the same."""
    path = tmp_path / "p.npz"
    source = {"data": {"num_clients": 2, "partition": {"kind": "file", "path": str(path)}}}
    found = []
    for first in ([0, 1], [0, 2]):
        save_partition(Partition.of([first, [3]]), path, np.arange(4))
        found.append(load_experiment(source))
    assert found[0].cell_hash != found[1].cell_hash
    assert load_experiment(found[0]) == found[0]
    elsewhere = path.rename(tmp_path / "q.npz")
    moved = load_experiment(source, {"data.partition.path": str(elsewhere)})
    assert moved.cell_hash == found[1].cell_hash
    assert moved.data.partition.path == str(elsewhere)


def test_methods_of_a_papers_table_that_are_yet_to_come_are_passed_by(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By name or as settings, with a line that says so; alone, or anywhere else, they are refused."""
    rows = [{"name": "fedbabu"}, {"name": "fedprox", "mu": 0.1}, {"name": "feddf"}]
    for axis in ({"algorithm": rows}, {"algorithm.name": ["fedbabu", "fedprox", "feddf"]}):
        caplog.clear()
        cells = load_sweep({"grid": {**axis, "seed": [0, 1]}}).cells()
        assert [(cell.algorithm.name, cell.seed) for cell in cells] == [("fedprox", 0), ("fedprox", 1)]
        assert [record.getMessage() for record in caplog.records] == [
            "not in rayfl yet, passed by: fedbabu, feddf"
        ]
    with pytest.raises(UserError, match="none of the methods fedbabu is in rayfl yet"):
        load_sweep({"grid": {"algorithm.name": ["fedbabu"]}})
    with pytest.raises(UserError, match="'fedbabu' is not in rayfl yet"):
        load_experiment({"algorithm": {"name": "fedbabu"}})
    with pytest.raises(UserError, match="did you mean 'fedprox'"):
        load_sweep({"grid": {"algorithm.name": ["fedprx"]}})
