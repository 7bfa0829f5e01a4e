"""What is refused before anything starts, in one line that says what to do."""

from typing import Any

import pytest
from tiny_search import BASE, LR, search

from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig
from rayfl.errors import UserError
from rayfl.experiment import Experiment
from rayfl.loading.experiments import load_experiment
from rayfl.loading.searches import load_search
from rayfl.metrics.names import reported
from rayfl.search.checks import check_search

TWO = {"global/val_accuracy": "max", "comm/total_bytes": "min"}
MOMENTUM = {"algorithm.momentum": {"uniform": [0, 0.9], "when": {"algorithm.optimizer": "sgd"}}}


def config(**settings: Any) -> ExperimentConfig:
    return load_experiment({}, {**BASE, "rounds": 3, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_names_are_those_of_real_rows(name: str) -> None:
    plan = config(**{"algorithm.name": name, "data.num_edges": 2})
    experiment = Experiment(plan)
    rows = list(experiment.rounds())[1:]
    experiment.close()
    assert set(reported(plan)) == {key for row in rows for key in row} - {"round"}


@pytest.mark.parametrize(
    "settings",
    [
        {"model.bn": "local", "model.norm": "batch"},
        {"data.val_fraction": 0.0},
        {"data.synthetic.num_classes": 7},
        {"eval_every": 2},
    ],
    ids=str,
)
def test_names_follow_the_config(settings: Any) -> None:
    plan = config(**settings)
    experiment = Experiment(plan)
    rows = list(experiment.rounds())[1:]
    experiment.close()
    assert set(reported(plan)) == {key for row in rows for key in row} - {"round"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"metric": "global/test_accuracy"}, "test rows.*use metric=global/val_accuracy"),
        ({"metric": "global/test_loss", "mode": "min"}, "use metric=global/val_loss"),
        ({"metric": "final/last10_accuracy", "mode": "max"}, "use metric=global/val_accuracy"),
        ({"metric": "client/test_accuracy_mean", "mode": "max"}, "use metric=global/val_accuracy"),
        ({"metric": "global/val_acc", "mode": "max"}, "unknown metric.*did you mean 'global/val_accuracy'"),
        ({"metric": "comm/total_byte", "mode": "min"}, "did you mean 'comm/total_bytes'"),
        ({"metric": "global/val_loss"}, "add mode: max, or mode: min"),
        ({"metric": {"global/val_loss": "low"}}, "must be max or min, got 'low'"),
        ({"settings": {"data.val_fraction": 0.0}}, "got data.val_fraction=0: set it"),
        ({"settings": {"algorithm.name": "splitfed_v3"}}, "personal models .splitfed_v3"),
        ({"metric": TWO, "scheduler": "asha"}, "a scheduler goes by one metric"),
        ({"metric": TWO, "scheduler": "pbt"}, "a scheduler goes by one metric"),
        ({"metric": TWO, "sampler": "cmaes"}, "cmaes wants two numbers or more and one metric"),
        ({"sampler": "cmaes"}, "cmaes wants two numbers or more"),
        ({"sampler": "grid"}, "a grid needs values that can be counted, 'algorithm.lr' is loguniform"),
        ({"space": {**LR, **MOMENTUM}, "scheduler": "pbt"}, "'algorithm.momentum' has a when"),
        ({"space": {"data.num_clients": {"randint": [2, 4]}}, "scheduler": "pbt"}, "numbers of the method"),
        (
            {
                "space": {"algorithm.cut_layer": {"randint": [1, 2]}},
                "settings": {"algorithm.name": "splitfed_v1"},
                "scheduler": "pbt",
            },
            "can't move the cut",
        ),
        ({"scheduler": "pbt", "sampler": "tpe"}, "pbt draws its members at random"),
        ({"scheduler": "pbt", "max_concurrent": 2}, "take turns"),
        ({"grace_rounds": 2}, "grace_rounds is a knob of asha and median, got scheduler=none"),
        ({"scheduler": "asha", "grace_rounds": 5}, "grace_rounds=5 is more than rounds=4"),
        ({"space": {"rounds": {"randint": [2, 4]}}, "scheduler": "asha"}, "take 'rounds' out"),
        ({"seeds": [0, 1], "settings": {"fleet.kind": "ray"}}, "one seed, or fleet.kind=local"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"trials": 0}, "trials must be greater than or equal to 1, got 0"),
        ({"sampler": "tpee"}, "sampler must be 'tpe', 'cmaes'"),
        ({"warm_start": "s"}, "is this search itself"),
        ({"sheduler": "asha"}, "unknown key of a search 'sheduler'.*did you mean 'scheduler'"),
        ({"rounds": 3}, "did you mean 'set: {rounds: ...}'"),
        ({"grid": {"seed": [0]}}, "use rayfl sweep"),
    ],
    ids=str,
)
def test_refusals(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        check_search(search(**keys))
    assert "\n" not in str(caught.value)


def test_what_is_right_is_not_refused() -> None:
    check_search(search(metric=TWO, seeds=[0, 1]))
    check_search(search({**LR, **MOMENTUM}, scheduler="asha", grace_rounds=2))
    check_search(search(metric="comm/client-fed_up_weights_bytes", mode="min"))
    check_search(search({**LR, "algorithm.batch_size": {"choice": [8, 16]}}, scheduler="pbt"))


def test_settings_edit_the_search_and_all_trials() -> None:
    plan = load_search(
        {"name": "s", "set": BASE, "search": LR},
        [
            "trials=7",
            "search.algorithm.momentum={uniform: [0, 0.5]}",
            "rounds=2",
            "seeds=[4]",
            "set.eval_every=2",
        ],
    )
    assert (plan.num_trials, plan.seeds, list(plan.search)) == (
        7,
        (4,),
        ["algorithm.lr", "algorithm.momentum"],
    )
    first = plan.configs({"algorithm.lr": 0.1, "algorithm.momentum": 0.25})[0]
    assert (first.rounds, first.seed, first.eval_every, first.algorithm.momentum) == (2, 4, 2, 0.25)
    assert load_search(plan) == plan
    assert list(load_search(plan, ["search.algorithm.lr=null"]).search) == ["algorithm.momentum"]
    with pytest.raises(UserError, match=r"use search\.algorithm\.lr=null"):
        load_search(plan, ["algorithm.lr=0.1"])


def test_nested_keys_and_the_files_name(tmp_path: Any) -> None:
    path = tmp_path / "narrow.yaml"
    path.write_text("preset: fedavg.digits\nsearch:\n  algorithm:\n    lr: {uniform: [0.01, 0.1]}\n")
    plan = load_search(str(path))
    assert (plan.name, list(plan.search), dict(plan.metric)) == (
        "narrow",
        ["algorithm.lr"],
        {"global/val_accuracy": "max"},
    )
