"""From sample to outcome, with Tune's part played in this process."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from tiny_search import LR, opened, run, search

from rayfl import runs
from rayfl.errors import UserError
from rayfl.loading.experiments import load_experiment
from rayfl.search.best import ranks
from rayfl.search.record import Record, search_folder
from rayfl.search.run import run_search
from rayfl.search.trial import Outcome

METRIC = "global/val_accuracy"
pytestmark = pytest.mark.slow


def results(out: Path) -> dict[str, str]:
    """Fingerprint of each cell that has ended."""
    cells = {path.name: runs.load(path) for path in (out / "cells").iterdir()}
    return {key: cell.result.weights_sha256 for key, cell in cells.items() if cell is not None}


def test_a_trial_is_its_cells_and_scores_their_mean(tmp_path: Path) -> None:
    plan = search(seeds=[0, 1], trials=2, sampler="random")
    samples = opened(plan, tmp_path / "out")
    run(samples)
    for trial in samples.record:
        assert trial.status == "FINISHED"
        alone = [runs.execute(config, tmp_path / "alone") for config in plan.configs(trial.sample)]
        assert [result.cell_hash for result in alone] == samples.keys(trial)
        values = [result.metrics[METRIC] for result in alone]
        found = samples.outcome(trial)
        assert (found.rounds, found.scores[METRIC]) == (4, tuple(values))
        assert found.mean(METRIC) == found.curve[METRIC][4] == statistics.fmean(values)
        assert found.std(METRIC) == pytest.approx(statistics.stdev(values))
    assert results(tmp_path / "out") == results(tmp_path / "alone")


def test_cut_short_anywhere_and_issued_again_equals_never_stopped(tmp_path: Path) -> None:
    """Also the samples drawn after the cut: what is drawn follows from what is known."""
    plan = search(
        {**LR, "algorithm.momentum": {"uniform": [0, 0.9]}}, trials=6, startup_trials=2, seeds=[0, 1]
    )
    whole = opened(plan, tmp_path / "whole")
    steps = run(whole)
    for cut in (1, steps // 2):
        out = tmp_path / f"cut{cut}"
        assert run(opened(plan, out), cut) == cut
        again = opened(plan, out)
        ended = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/weights.pt")}
        run(again)
        assert [vars(trial) for trial in again.record] == [vars(trial) for trial in whole.record]
        assert results(out) == results(tmp_path / "whole")
        assert all(path.stat().st_mtime_ns == at for path, at in ended.items())
    assert run(opened(plan, tmp_path / "whole")) == 0


def test_cells_that_ended_elsewhere_and_samples_drawn_twice_are_not_run_again(tmp_path: Path) -> None:
    space = {"algorithm.local_epochs": {"randint": [1, 3]}}
    plan = search(space, sampler="random", trials=10)
    for epochs in (1, 2):
        runs.execute(plan.configs({"algorithm.local_epochs": epochs})[0], tmp_path)
    samples = opened(plan, tmp_path)
    assert run(samples) == 4
    assert sorted(trial.sample["algorithm.local_epochs"] for trial in samples.record) == [1, 2, 3]
    assert {trial.status for trial in samples.record} == {"FINISHED"}

    # Nor is a seed that has ended, where another seed of its trial has not.
    ended = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/weights.pt")}
    more = opened(search(space, sampler="random", trials=2, seeds=[0, 5], name="t"), tmp_path)
    assert run(more) == 8
    assert all(path.stat().st_mtime_ns == at for path, at in ended.items())


def test_a_lost_result_is_run_again_and_more_trials_go_on(tmp_path: Path) -> None:
    plan = search(sampler="random", trials=2)
    first = opened(plan, tmp_path)
    run(first)
    lost = first.keys(first.record.trials[1])[0]
    (tmp_path / "cells" / lost / "result.json").unlink()
    more = opened(search(sampler="random", trials=3), tmp_path)
    assert more.todo == 2
    assert run(more) == 8
    assert [trial.number for trial in more.record] == [0, 1, 2]
    assert more.record.trials[:2] == first.record.trials


def test_what_diverges_is_worst_and_what_fails_is_said_and_neither_stops_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayfl.algorithms.fedavg import FedAvg

    before = FedAvg.round

    def breaks(self: FedAvg, t: int) -> None:
        if self.config.lr == 0.5:
            raise ValueError("boom")
        before(self, t)

    monkeypatch.setattr(FedAvg, "round", breaks)
    plan = search({"algorithm.lr": {"choice": [0.1, 1e30, 0.5]}}, sampler="grid", seeds=[0, 1])
    samples = opened(plan, tmp_path)
    run(samples)
    assert [trial.status for trial in samples.record] == ["FINISHED", "DIVERGED", "FAILED"]
    assert "boom" in samples.record.trials[2].error
    found = run_search(plan, tmp_path, show=samples._show)
    assert found.trials.status[0] == "FINISHED"
    assert found.trials["rank"].isna().tolist() == [False, True, True]
    assert [best["trial"] for best in found.best] == [0]
    # Failed trials are left alone until that is asked for.
    monkeypatch.undo()
    assert opened(plan, tmp_path).todo == 0
    record = Record(plan, search_folder(tmp_path, "s"))
    record.set(record.trials[2], "RUNNING")
    again = opened(plan, tmp_path)
    run(again)
    assert again.record.trials[2].status == "FINISHED"


def test_seeds_share_their_rounds(tmp_path: Path) -> None:
    """After each report all seeds are at the same evaluated round, though one was ahead before."""
    plan = search(seeds=[0, 1], trials=1, settings={"rounds": 6, "eval_every": 2})
    ahead = plan.configs(opened(plan, tmp_path / "other").next().sample)[1]  # type: ignore[union-attr]
    folder = runs.cell_folder(tmp_path, ahead.cell_hash)
    with runs.claim(folder):
        experiment = runs.begin(folder, ahead, resume=True)
        for row in experiment.rounds(folder):
            if row["round"] == 3:
                break
        experiment.close()
    samples = opened(plan, tmp_path)
    seen: list[Any] = []
    took = samples.took

    def noted(number: int, step: Any) -> None:
        seen.append((step.numbers["round"], step.done))
        took(number, step)

    samples.took = noted  # type: ignore[method-assign]
    run(samples)
    assert seen == [(2, False), (4, False), (6, True)]
    assert samples.outcome(samples.record.trials[0]).curve[METRIC].keys() == {2, 4, 6}


def test_the_best_is_a_preset_of_its_config(tmp_path: Path) -> None:
    plan = search(trials=3, sampler="random", seeds=[3, 4])
    samples = opened(plan, tmp_path)
    run(samples)
    found = run_search(plan, tmp_path, show=samples._show)
    scores = {trial.number: samples.outcome(trial).mean(METRIC) for trial in samples.record}
    best = found.best[0]
    assert scores[best["trial"]] == max(scores.values())
    assert found.presets == [tmp_path / "searches" / "s" / "best.yaml"]
    loaded = load_experiment(str(found.presets[0]), ["tracking.enabled=false"])
    assert loaded == plan.configs(samples.record.trials[best["trial"]].sample)[0]
    assert best["metrics"]["global/test_accuracy"] >= 0
    text = found.presets[0].read_text()
    assert text.startswith("# The best of the search 's'")
    assert f"{scores[best['trial']]:.4f}" in text
    assert (tmp_path / "searches" / "s.md").read_text().count("FINISHED") == 3
    assert found.trials["rank"].tolist() == sorted(found.trials["rank"])
    # Nothing of the test rows but for the chosen one.
    assert not any("test" in column for column in found.trials.columns)


def test_the_front_is_what_nothing_beats() -> None:
    plan = search(metric={METRIC: "max", "comm/total_bytes": "min"})
    points = {0: (0.9, 5.0), 1: (0.8, 3.0), 2: (0.8, 4.0), 3: (0.7, 3.0), 4: (math.nan, 1.0), 5: (0.6, 6.0)}
    outcomes = {n: Outcome(4, {METRIC: (a,), "comm/total_bytes": (b,)}, {}) for n, (a, b) in points.items()}
    assert ranks(plan, outcomes) == {0: 1, 1: 1, 2: 2, 3: 2, 5: 3}
    single = {n: Outcome(4, {METRIC: (a,)}, {}) for n, a in {0: 0.5, 1: 0.9, 2: 0.9, 3: 0.1}.items()}
    assert ranks(search(), single) == {1: 1, 2: 1, 0: 3, 3: 4}


def test_a_front_is_written_as_presets(tmp_path: Path) -> None:
    metric = {METRIC: "max", "comm/total_bytes": "min"}
    plan = search({"algorithm.participation": {"choice": [0.34, 1.0]}}, metric=metric, sampler="grid")
    samples = opened(plan, tmp_path)
    run(samples)
    found = run_search(plan, tmp_path, show=samples._show)
    assert [best["trial"] for best in found.best] in ([0, 1], [0])
    names = {path.name for path in found.presets}
    assert names == {f"pareto-{i + 1}.yaml" for i in range(len(found.best))}
    assert load_experiment(str(found.presets[0])).algorithm.participation in (0.34, 1.0)


def test_another_question_under_the_same_name_is_refused(tmp_path: Path) -> None:
    folder = search_folder(tmp_path, "s")
    folder.mkdir(parents=True)
    Record(search(), folder).write()
    Record(search(trials=9, sampler="random"), folder)
    for other, said in (
        (search(settings={"rounds": 5}), "settings or seeds differ"),
        (search(seeds=[0, 1]), "settings or seeds differ"),
        (search(metric="global/val_loss", mode="min"), "its metric was"),
    ):
        with pytest.raises(UserError, match=said):
            Record(other, folder)
    (folder / "trials.json").write_text(json.dumps({})[:1])
    with pytest.raises(UserError, match="is damaged"):
        Record(search(), folder)


def test_values_outside_a_narrower_space_are_left_alone(tmp_path: Path) -> None:
    space = {"algorithm.lr": {"choice": [0.1, 0.2]}}
    run(opened(search(space, sampler="grid"), tmp_path))
    narrower = opened(search({"algorithm.lr": {"choice": [0.2, 0.3]}}, sampler="grid"), tmp_path)
    assert run(narrower) == 4
    assert [trial.sample["algorithm.lr"] for trial in narrower.record] == [0.1, 0.2, 0.3]
