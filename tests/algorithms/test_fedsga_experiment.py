"""FedSGA as an experiment: what is scored, resuming, large models, estimated costs."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from test_fedsga import SMALL
from test_fleets import experiment, steps
from tiny import identical

from rayfl import costs
from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig
from rayfl.experiment import Experiment
from rayfl.loading.experiments import load_experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the generated images are kept."""
    return tmp_path_factory.mktemp("data")


def of_images(folder: Path, **options: Any) -> Experiment:
    """Four clients with generated images."""
    return experiment(
        ALGORITHMS["fedsga"], folder, num_prompts=2, **SMALL, calib_every=2, calib_offset=1, **options
    )


@pytest.mark.parametrize("options", [{"strategy": "random"}, {"eval_prompt": "own"}], ids=str)
def test_scores_are_means_over_clients(options: dict[str, Any], folder: Path) -> None:
    """Every client's model, at its depth, with the mean of the prompts or its own; by hand."""
    running = of_images(folder, e_init_std=1.0, lr=0.3, **options)
    row = steps(running, 4)[-1]
    algorithm, data = running.algorithm, running.data
    depths = running.fleet.gather(algorithm.fed.candidates())
    prompts = running.fleet.gather(algorithm.clients.prompts())
    mean = {"prompts.tokens": torch.stack([each["prompts.tokens"] for each in prompts.values()]).mean(0)}
    inputs, labels = data.test.batch(np.arange(len(data.test)), torch.float64, "cpu")
    right, loss = [], []
    for client, depth in depths.items():
        model = running.blueprint.model().double().eval()
        shared = {
            **running.fleet.gather(algorithm.fed.weights()),
            **running.fleet.gather(algorithm.main.weights()),
        }
        own = prompts[client] if algorithm.is_personal(algorithm.config) else mean
        model.load_state_dict({**shared, **own, "harmoniser.depth": torch.tensor(depth)})
        with torch.no_grad():
            logits = model(inputs)
        right.append((logits.argmax(1) == labels).double().mean().item())
        loss.append(tiny.loss(logits, labels).item())
    assert row["global/test_accuracy"] == pytest.approx(np.mean(right), abs=1e-12)
    assert row["global/test_loss"] == pytest.approx(np.mean(loss), abs=1e-9)
    if not algorithm.is_personal(algorithm.config):
        assert len(set(depths.values())) > 1
        shares = Counter(depths.values())
        assert [share for share, _ in algorithm.versions(3)] == [shares[d] / 4 for d in sorted(shares)]


def test_scores_do_not_follow_where_depths_are_estimated(folder: Path) -> None:
    """All that a run reports but for its bytes."""
    rows = [
        [
            {name: value for name, value in row.items() if not name.startswith("comm/")}
            for row in steps(of_images(folder, estimator_location=at), 4)
        ]
        for at in ("server", "client")
    ]
    assert rows[0] == rows[1]


RESUMED: list[dict[str, Any]] = [
    {"probe": "end", "reset_optimizer": "keep", "momentum": 0.9},
    {"obs_norm": "running_z", "probe": "linear", "dropout_rate": 0.5},
    {"strategy": "random", "client_aggregation": "none", "proto_update": "step"},
    {"bn": "local", "optimizer": "adam", "reset_optimizer": "keep", "lr": 0.01},
    {"estimator_location": "client", "obs_norm": "raw"},
    {"phi_s": "reuse_phi", "server_body": "none"},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", RESUMED, ids=lambda o: ",".join(map(str, o.values())))
def test_resumed_is_never_stopped(options: dict[str, Any], folder: Path) -> None:
    """Rows, weights and bytes, from a state stored as plain tensors after round 2."""
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


LARGE = {
    "resnet18": (
        ["layer1", "layer2", "layer3"],
        [f"layer{s}.{b}" for s in (1, 2, 3, 4) for b in (0, 1)],
    ),
    "vit_tiny": (["block.2", "block.5", "block.8"], [f"block.{i}" for i in range(12)]),
}


def large(folder: Path, model: str, side: int = 32, **options: Any) -> ExperimentConfig:
    """Two clients with some images each."""
    return load_experiment(
        {},
        {
            "rounds": 1,
            "tracking.enabled": False,
            "data.name": "synthetic",
            "data.synthetic": {
                "num_train": 16,
                "num_test": 4,
                "num_classes": 3,
                "height": side,
                "width": side,
            },
            "data.num_clients": 2,
            "data.root": str(folder),
            "data.partition.min_size": 1,
            "data.val_fraction": 0.0,
            "model.name": model,
            "model.width": 0.125 if model == "resnet18" else 1.0,
            "algorithm.name": "fedsga",
            "algorithm.strategy": "random",
            **{f"algorithm.{key}": value for key, value in options.items()},
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("several", [0, 1], ids=["3 candidates", "many candidates"])
@pytest.mark.parametrize("model", LARGE)
def test_large_models(model: str, several: int, folder: Path) -> None:
    """ResNet-18 with 3 candidates and with 8, ViT with 3 and with 12, two clients at depths of their own."""
    names = LARGE[model][several]
    running = Experiment(large(folder, model, candidates=names))
    rows = list(running.rounds())
    assert np.isfinite(list(rows[-1].values())).all()
    found = {key.removeprefix("fedsga/clients_at/") for key in rows[-1] if "clients_at" in key}
    assert len(found) == len(names) == (3, {"resnet18": 8, "vit_tiny": 12}[model])[several]
    depths = running.fleet.gather(running.algorithm.fed.candidates())
    assert [rows[-1][f"fedsga/depth/client{i}"] for i in range(2)] == [depths[0], depths[1]]
    assert rows[-1]["params/client"] < rows[0]["params/client"] or set(depths.values()) == {len(names)}


def test_three_candidates_by_default(folder: Path) -> None:
    """ResNet-18's first three stages."""
    running = Experiment(large(folder, "resnet18"))
    names = [candidate.name for candidate in running.algorithm.interfaces]  # type: ignore[attr-defined]
    assert names == ["layer1.1", "layer2.1", "layer3.1"]


DEEPEST = {"strategy": "adaptive", "rho": 9.0}
COSTED: list[dict[str, Any]] = [
    {"strategy": "static"},
    {"strategy": "random"},
    {"strategy": "random", "phi_s": "reuse_phi", "server_body": "none"},
    {"strategy": "static", "phi_s": "reuse_phi", "candidates": ["fc1"]},
    {"strategy": "adaptive"},
    DEEPEST,
    {**DEEPEST, "phi_s": "reuse_phi", "server_body": "none"},
    {**DEEPEST, "estimator_location": "client"},
    {**DEEPEST, "estimator_location": "client", "estimator.scope": "per_client"},
]


@pytest.mark.parametrize("options", COSTED, ids=lambda o: ",".join(map(str, o.values())))
def test_estimated_costs(options: dict[str, Any], folder: Path) -> None:
    """Those of the run where depths don't follow values; where they may, the estimate says so."""
    config = large(folder, "cnn", side=8, calib_every=1, **options)
    estimate = costs.estimate(config)
    adaptive = options["strategy"] == "adaptive"
    assert estimate.values_read is adaptive
    if not adaptive or "rho" in options:
        running = Experiment(config)
        running.run()
        real = {
            line: size for line, size in running.ledger.bytes.items() if line.phase != "evaluation" and size
        }
        assert {line: size for line, size in estimate.ledger.bytes.items() if size} == real
