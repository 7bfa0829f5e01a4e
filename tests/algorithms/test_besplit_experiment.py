"""BESplit as an experiment: what is scored, reported and drawn, resuming, diverging, estimated costs."""

import io
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from matplotlib.figure import Figure
from test_besplit import EAGER, NO_DTD, skewed
from test_fleets import experiment, steps
from tiny import identical

from rayfl import costs
from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.bes.auxiliary import LogAlpha
from rayfl.algorithms.bes.config import (
    ContributionConfig,
    DistillationConfig,
    EvidenceConfig,
    PairingConfig,
    RecordConfig,
)
from rayfl.experiment import Experiment
from rayfl.metrics.names import reported
from rayfl.pictures import Graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the generated images are kept."""
    return tmp_path_factory.mktemp("data")


def of_images(folder: Path, **options: Any) -> Experiment:
    """Four clients with generated images, of whom those who can gain by it pair."""
    return experiment(ALGORITHMS["besplit"], folder, **{"bcc": EAGER, **options})


@pytest.mark.parametrize("options", [{}, {"loss": "ce", "bn": "local"}], ids=str)
def test_auxiliary_models_are_scored_beside(options: dict[str, Any], folder: Path) -> None:
    """On all test rows, a mean over clients; on their own rows, all of these together; by hand."""
    running = of_images(folder, lr=0.3, **options)
    row = steps(running, 3)[-1]
    data, right, own, loss = running.data, [], [], []
    for client in range(4):
        model = running.blueprint.algorithm.cut(running.config.algorithm, running.blueprint.model())
        auxiliary = model["auxiliary"].double().eval()
        party = running.fleet._hosts[0]._shell.parties["client", client]  # type: ignore[attr-defined]
        auxiliary.load_state_dict(dict(party.auxiliary()))
        inputs, labels = data.test.batch(np.arange(len(data.test)), torch.float64, "cpu")
        with torch.no_grad():
            logits = auxiliary(inputs)
        logits = logits if options else LogAlpha(EvidenceConfig())(logits)
        hits = (logits.argmax(1) == labels).double()
        mine = torch.from_numpy(data.client_test_indices[client].copy())
        right.append(hits.mean().item())
        own += hits[mine].tolist()
        loss += torch.nn.functional.cross_entropy(logits[mine], labels[mine], reduction="none").tolist()
    assert row["auxiliary/global_accuracy"] == pytest.approx(np.mean(right), abs=1e-12)
    assert row["auxiliary/local_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)
    assert row["auxiliary/local_loss"] == pytest.approx(np.mean(loss), abs=1e-9)
    assert row["auxiliary/local_accuracy"] != row["auxiliary/global_accuracy"] != row["global/test_accuracy"]
    found = running.result().metrics
    history = [row["auxiliary/local_accuracy"] for row in running.history[1:]]
    assert found["final/last10_auxiliary_local_accuracy"] == pytest.approx(np.mean(history))


@pytest.mark.parametrize("where", ["local", "global"])
def test_auxiliary_models_are_scored_where_asked(where: Any, folder: Path) -> None:
    rows = [steps(of_images(folder, a_eval=asked), 2)[-1] for asked in (where, "both")]
    mine = {name for name in rows[1] if name.startswith(f"auxiliary/{where}_")}
    assert mine == {name for name in rows[0] if name.startswith("auxiliary/")}
    assert {name: rows[0][name] for name in mine} == {name: rows[1][name] for name in mine}
    assert not any("auxiliary" in name for name in steps(of_images(folder, dtd=NO_DTD), 1)[0])


def test_scores_go_by_the_mean_of_the_dirichlet(folder: Path) -> None:
    """``global/test_loss`` is -ln p of the label, p = alpha / S."""
    running = of_images(folder)
    row = steps(running, 2)[-1]
    model = running.blueprint.model().double().eval()
    model.load_state_dict(running.weights())
    inputs, labels = running.data.test.batch(np.arange(len(running.data.test)), torch.float64, "cpu")
    with torch.no_grad():
        alpha = 1 + torch.nn.Sequential.forward(model, inputs).exp()
    p = (alpha / alpha.sum(1, keepdim=True)).gather(1, labels[:, None])
    assert row["global/test_loss"] == pytest.approx(-p.log().mean().item())


def test_what_is_reported_can_be_known_beforehand(folder: Path) -> None:
    """The names that a search may go by."""
    running = of_images(folder, participation=1.0)
    row = steps(running, 3)[-1]
    known = set(reported(running.config))
    assert {name for name in known if not name.startswith("wall/")} <= row.keys()
    later = {name for name in row if name.startswith(("besplit/", "auxiliary/"))} - known
    assert {name.split("/")[1] for name in later} <= {"partner", "mean_rho", "global_top5_accuracy"}


def test_label_bias_by_hand() -> None:
    """Before and after by plan, and as trained on: shares of classes that each model has met, weighed."""
    federation = tiny.Federation(skewed(weights="size")).run(1)
    main = federation.party("main")
    mixes = {client: record.proportions() for client, record in main.records.items()}
    overall = torch.stack([mixes[client] for client in range(4)]).mean(0)
    before = federation.run(1).algorithm.report(2)
    weights = main.calibration.weights
    wanted = sum(weights[i] * (mixes[i] - overall).abs().sum().item() for i in range(4))
    assert before["besplit/label_bias_before"] == pytest.approx(wanted)
    assert before["besplit/num_pairs"] == 2
    assert before["besplit/paired_share"] == 1
    after = {}
    for pair in main.calibration.planned:
        rho = torch.from_numpy(pair.rho)
        for i, j in ((pair.first, pair.second), (pair.second, pair.first)):
            after[i] = (1 - rho) * mixes[i] + rho * mixes[j]
    planned = sum(weights[i] * (after[i] - overall).abs().sum().item() for i in range(4))
    assert before["besplit/label_bias_after"] == pytest.approx(planned)
    # Batches are of all six samples, so that batch shares are the clients' own.
    counts = {
        i: torch.bincount(
            torch.from_numpy(federation.plan.train.labels[federation.plan.client_rows[i]]), minlength=3
        )
        / 6
        for i in range(4)
    }
    realised = 0.0
    for pair in main.calibration.planned:
        gives = main.calibration.first_gives(pair)
        has = [counts[i] > 0 for i in (pair.first, pair.second)]
        rho = torch.tensor([r * bool(has[0][n] if gives[n] else has[1][n]) for n, r in enumerate(pair.rho)])
        for i, j in ((pair.first, pair.second), (pair.second, pair.first)):
            mix = (1 - rho) * counts[i] + rho * counts[j]
            realised += weights[i] * (mix / mix.sum() - overall).abs().sum().item()
    assert before["besplit/label_bias_realised"] == pytest.approx(realised, abs=1e-6)
    assert before["besplit/mean_rho"] == pytest.approx(
        np.mean([pair.rho[pair.rho > 0].mean() for pair in main.calibration.planned])
    )
    partners = {i: before[f"besplit/partner/client{i}"] for i in range(4)}
    assert all(partners[partners[i]] == i for i in range(4))


def test_a_round_without_anybody_reports_nothing_of_the_last() -> None:
    federation = tiny.Federation(skewed(dropout_rate=0.0)).run(2)
    assert federation.algorithm.report(2)["besplit/num_pairs"] == 2
    federation.algorithm.config = replace(federation.plan.config, dropout_rate=1.0)  # type: ignore[type-var]
    before = federation.weights()
    assert federation.run(1).algorithm.report(3) == {"besplit/num_pairs": 0.0}
    assert identical(before, federation.weights())


RESUMED: list[dict[str, Any]] = [
    {"csr": RecordConfig(update="round", ttl=1), "ea": ContributionConfig(w_ema=0.5), "participation": 0.5},
    {
        "dtd": DistillationConfig(wa_sync="fedavg", teacher="current"),
        "reset_optimizer": "keep",
        "momentum": 0.9,
    },
    {"bcc": replace(EAGER, mode="swap", match_scope="round"), "bn": "local", "momentum": 0.9},
    {"bcc": replace(EAGER, mode="feature_mixup", rho_mode="scalar"), "reset_optimizer": "per_batch"},
]


@pytest.mark.parametrize("options", RESUMED, ids=range(len(RESUMED)))
def test_resumed_is_never_stopped(options: dict[str, Any], folder: Path) -> None:
    """Rows, auxiliary models' scores among them, weights and bytes, from plain tensors after round 2."""
    whole = of_images(folder, **options)
    steps(whole, 3)
    stored = io.BytesIO()
    torch.save(whole.state_dict(), stored)
    expected = steps(whole, 2)
    stored.seek(0)
    resumed = of_images(folder, **options)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    assert steps(resumed, 2) == expected
    assert identical(resumed.weights(), whole.weights())
    assert resumed.ledger.bytes == whole.ledger.bytes


@pytest.mark.parametrize("options", RESUMED, ids=range(len(RESUMED)))
def test_options_do_not_depend_on_the_layout(options: dict[str, Any]) -> None:
    """Two hosts that meet through serialised copies: the same bits as one."""
    plan = skewed("batch", **options)
    there = tiny.Federation(plan, tiny.sealed(plan, client_actors=2, placement="separate")).run(3)
    here = tiny.Federation(plan).run(3)
    assert identical(there.weights(), here.weights())
    assert +there.fleet.ledger.bytes == +here.fleet.ledger.bytes
    assert there.algorithm.report(3) == here.algorithm.report(3)


@pytest.mark.parametrize("on_client_error", ["stop", "skip"])
def test_diverging(on_client_error: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where steps are endless the run ends as diverged, or goes on as long as somebody is left."""
    with caplog.at_level(logging.ERROR):
        running = of_images(folder, lr=1e40, on_client_error=on_client_error)
        rows = [running.step() for _ in range(3) if running.status == "RUNNING"]
    assert running.status == "DIVERGED" or rows[-1]["client/num_failed"]
    main = running.fleet._hosts[0]._shell.parties["main", 0]  # type: ignore[attr-defined]
    for record in main.records.values():
        assert record.mean_evidence().isfinite().all()
    assert all(np.isfinite(mass) and mass > 0 for mass in main.masses.values())


@pytest.mark.parametrize(
    "options",
    [{}, {"bcc": PairingConfig(mode="off"), "dtd": NO_DTD}, {"dtd": DistillationConfig(wa_sync="fedavg")}],
    ids=range(3),
)
def test_estimated_costs(options: dict[str, Any], folder: Path) -> None:
    """Those of the run, although the method looks at values: none changes what is sent."""
    running = of_images(folder, **options)
    running.run()
    estimate = costs.estimate(running.config)
    real = {line: size for line, size in running.ledger.bytes.items() if line.phase != "evaluation" and size}
    assert {line: size for line, size in estimate.ledger.bytes.items() if size} == real
    assert estimate.notes == []


def test_pictures(folder: Path) -> None:
    """Who paired is drawn as a graph: a line per pair, as thick as the pair was often."""
    history = [
        {"round": 1.0, "besplit/partner/client0": 3.0, "besplit/partner/client3": 0.0},
        {"round": 2.0, "besplit/partner/client0": 3.0, "besplit/partner/client3": 0.0},
        {"round": 3.0, "besplit/partner/client0": 1.0, "besplit/partner/client1": 0.0},
    ]
    figure = Figure()
    Graph("besplit/partner", "pairs").draw(figure, history)
    (axes,) = figure.axes
    widths = sorted(line.get_linewidth() for line in axes.lines if len(line.get_xdata()) == 2)
    assert widths == [2.0, 4.0]
    assert [text.get_text() for text in axes.texts] == ["0", "1", "3"]
    Graph("besplit/partner", "pairs").draw(Figure(), [{"round": 0.0}])
