"""Methods that must be one another: every cut, momentum, norms, unequal clients, partial rounds."""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import difference, identical

from rayfl.algorithms import ALGORITHMS
from rayfl.blueprint import make_blueprint
from rayfl.config import ExperimentConfig, TrainConfig
from rayfl.data import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.host import Blueprint
from rayfl.models import MODELS, ModelConfig, legal_cuts

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "weight_decay": 1e-2},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 1e-2},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 1e-2},
}
EVERY_CUT = [(model, cut) for model, cuts in tiny.CUTS.items() for cut in cuts]
CUT_PAIRS = [(model, pair) for model, cuts in tiny.CUTS.items() for pair in itertools.combinations(cuts, 2)]
EQUAL = (6, 6, 6, 6)


@functools.cache
def fedavg(model: str, optimizer: str, participation: float, **options: Any) -> tiny.State:
    """FedAvg's global model after two rounds."""
    config = {"participation": participation, **OPTIMIZERS[optimizer], **options}
    return tiny.run(tiny.blueprint("fedavg", model=model, **config))


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("model", "cut"), EVERY_CUT)
def test_splitfed_v1_is_fedavg(model: str, cut: int, optimizer: str, participation: float) -> None:
    """Both halves averaged each round (Thapa et al.) = the whole averaged each round (McMahan et al.)."""
    config = {"participation": participation, **OPTIMIZERS[optimizer]}
    split = tiny.run(tiny.blueprint("splitfed_v1", model=model, cut_layer=cut, **config))
    assert difference(split, fedavg(model, optimizer, participation)) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("model", "cuts"), CUT_PAIRS)
def test_splitfed_u_is_fedavg(model: str, cuts: tuple[int, int], optimizer: str) -> None:
    """The U shape (Vepakomma et al.) moves the loss to the client and changes no number."""
    config = {"cut_layer": cuts[0], "tail_layer": cuts[1], "participation": 0.5, **OPTIMIZERS[optimizer]}
    found = tiny.run(tiny.blueprint("splitfed_u", model=model, **config))
    assert difference(found, fedavg(model, optimizer, 0.5)) < 1e-10


OPTIONS: dict[str, dict[str, Any]] = {
    "bn local": {"bn": "local"},
    "optimiser kept": {"reset_optimizer": "keep"},
    "bn local, optimiser kept": {"bn": "local", "reset_optimizer": "keep"},
    "uniform": {"weights": "uniform"},
    "by size": {"sampling": "by_size"},
    "dropout": {"dropout_rate": 0.4},
    "epochs": {"local_epochs": 2},
    "steps": {"local_steps": 3},
    "drop last": {"drop_last": True},
    "schedule": {"lr_schedule": "exponential", "lr_decay": 0.5},
    "sum": {"loss_reduction": "sum"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_splitfed_v1_is_fedavg_under(option: str) -> None:
    """The identity holds whatever the knobs that both halves share."""
    config = {"participation": 0.75, "momentum": 0.9, **OPTIONS[option]}
    split = tiny.run(tiny.blueprint("splitfed_v1", model="batch", cut_layer=2, **config), 3)
    whole = tiny.run(tiny.blueprint("fedavg", model="batch", **config), 3)
    assert difference(split, whole) < 1e-10
    plain = {"participation": 0.75, "momentum": 0.9}
    if option != "dropout":
        assert difference(whole, tiny.run(tiny.blueprint("fedavg", model="batch", **plain), 3)) > 1e-6


def test_clipping_each_side_breaks_the_identity() -> None:
    """A norm over both halves is not two norms: clipping per side must differ from clipping the whole."""
    split = tiny.run(tiny.blueprint("splitfed_v1", clip_norm=0.05))
    whole = tiny.run(tiny.blueprint("fedavg", clip_norm=0.05))
    assert difference(split, whole) > 1e-6


ONE_CLIENT = ["fedavg", "fedprox", "hierfl", "sl", "splitfed_v1", "splitfed_v2", "splitfed_v3",
              "splitfed_u", "splitfed_joint", "mergesfl", "besplit", "hsfl"]  # fmt: skip


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("model", tiny.CUTS)
@pytest.mark.parametrize("method", ONE_CLIENT)
def test_one_client_is_central_training(method: str, model: str, optimizer: str) -> None:
    """With one client every method is central training, its optimiser renewed each round."""
    extra: dict[str, Any] = {"fedprox": {"mu": 0.0}, "besplit": {"loss": "ce"}}.get(method, {})
    plan = tiny.blueprint(method, (11,), model, **{"drop_last": True, **OPTIMIZERS[optimizer], **extra})
    central = tiny.initial(plan)
    for t in (1, 2):
        tiny.fit(central, tiny.optimizer_for(plan, central, t), tiny.client_batches(plan, t, 0))
    found = {name.removeprefix("client0/"): value for name, value in tiny.run(plan).items()}
    assert difference(found, tiny.state_of(central)) < 1e-10


@pytest.mark.parametrize("config", [{}, {"momentum": 0.9, "reset_optimizer": "keep"}], ids=["sgd", "kept"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_the_cut_of_sl_does_not_matter(model: str, config: dict[str, Any]) -> None:
    """Sequential split learning: the cut changes who computes, not what comes out."""
    results = [
        tiny.run(tiny.blueprint("sl", model=model, cut_layer=cut, **config)) for cut in tiny.CUTS[model]
    ]
    assert all(difference(results[0], other) < 1e-10 for other in results[1:])


@pytest.mark.parametrize("model", tiny.CUTS)
def test_v2_orders_agree_on_one_batch_each(model: str) -> None:
    """Batch by batch and client by client are one order when every client has a single batch."""
    plans = [
        tiny.blueprint("splitfed_v2", EQUAL, model, batch_size=6, visits=visits, momentum=0.9)
        for visits in ("batch_major", "client_major")
    ]
    assert identical(*map(tiny.run, plans))


def test_v2_orders_differ_on_more() -> None:
    """Two SplitFed v2 orders (paper's and released code's) differ as soon as clients have two batches."""
    plans = [tiny.blueprint("splitfed_v2", visits=visits) for visits in ("batch_major", "client_major")]
    assert difference(*map(tiny.run, plans)) > 1e-6


UNION: dict[str, dict[str, Any]] = {
    "mergesfl": {},
    "splitfed_v1": {"weights": "batch"},
    "fedavg": {"weights": "batch"},
    "splitfed_joint": {"weights": "batch", "loss_norm": "merged_mean"},
}


@pytest.mark.parametrize("model", ["mlp", "group"])
@pytest.mark.parametrize("method", UNION)
def test_one_step_is_sgd_on_the_union_batch(method: str, model: str) -> None:
    """One local step of unequal batches, averaged by batch size: w - eta grad CE(all rows at hand)."""
    sizes = (4, 2, 3, 4)
    plan = tiny.blueprint(method, sizes, model, local_steps=1, **UNION[method])
    central = tiny.initial(plan)
    for t in (1, 2):
        rows = [batch for i in range(len(sizes)) for batch in tiny.client_batches(plan, t, i, 1)]
        union = tuple(map(tiny.torch.cat, zip(*rows, strict=True)))
        tiny.fit(central, tiny.optimizer_for(plan, central, t), [union])  # type: ignore[list-item]
    assert difference(tiny.run(plan), tiny.state_of(central)) < 1e-12


def test_uniform_bottoms_break_the_union_identity() -> None:
    """MergeSFL's released uniform average of unequal batches is not SGD on the union batch."""
    found = [tiny.run(tiny.blueprint("mergesfl", (4, 2, 3), local_steps=1, weights=weights), 1)
             for weights in ("batch", "uniform")]  # fmt: skip
    assert difference(*found) > 1e-5
    found = [tiny.run(tiny.blueprint("mergesfl", (4, 4, 4), local_steps=1, weights=weights), 1)
             for weights in ("batch", "uniform")]  # fmt: skip
    assert difference(*found) < 1e-15


@pytest.mark.parametrize(("model", "cuts"), CUT_PAIRS)
def test_hsfl_is_sgd_on_the_mean_gradient(model: str, cuts: tuple[int, int]) -> None:
    """Three tiers that average at every step take the step of the mean gradient, as SplitFed v1 does."""
    shape: dict[str, Any] = {"edges": (0, 0, 0, 1), "num_edges": 2}
    config: dict[str, Any] = {"local_steps": 1, "batch_size": 6, "weight_decay": 1e-2}
    hsfl = tiny.run(
        tiny.blueprint("hsfl", EQUAL, model, cut_layers=cuts, intervals=(1, 1), **shape, **config), 3
    )
    whole = tiny.run(tiny.blueprint("fedavg", EQUAL, model, weights="uniform", **config), 3)
    v1 = tiny.run(tiny.blueprint("splitfed_v1", EQUAL, model, weights="uniform", **config), 3)
    buffers = [name for name in hsfl if "running" in name or "num_batches" in name]
    learned = [{k: v for k, v in state.items() if k not in buffers} for state in (hsfl, whole, v1)]
    assert difference(learned[0], learned[1]) < 1e-12
    assert difference(learned[0], learned[2]) < 1e-12


@pytest.mark.parametrize(("model", "cuts"), CUT_PAIRS)
def test_hsfl_tiers_have_the_gradients_of_the_joined_network(model: str, cuts: tuple[int, int]) -> None:
    """A step of lr 1 moves each copy by the joined network's gradient, averaged over its own clients."""
    plan = tiny.blueprint(
        "hsfl", EQUAL, model, edges=(0, 0, 0, 1), num_edges=2, cut_layers=cuts, intervals=(99, 99),
        local_steps=1, batch_size=6, lr=1.0,
    )  # fmt: skip
    federation = tiny.Federation(plan).run(1)
    gradients = []
    for client in range(4):
        whole = tiny.initial(plan)
        ((inputs, labels),) = tiny.client_batches(plan, 1, client, 1)
        tiny.loss(whole(inputs), labels).backward()
        gradients.append({name: p.grad for name, p in whole.named_parameters()})
    start = dict(tiny.initial(plan).named_parameters())
    copies = {("client", i): ((i,), federation.party("client", i).own) for i in range(4)}
    copies |= {("edge", e): (who, federation.party("edge", e).own) for e, who in enumerate([(0, 1, 2), (3,)])}
    copies["main", 0] = ((0, 1, 2, 3), federation.party("main").current)
    for below, weights in copies.values():
        for name in weights.keys() & start.keys():
            mean = sum(gradients[i][name] for i in below) / len(below)
            assert (start[name] - weights[name] - mean).abs().max() < 1e-12


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_one_edge_is_fedavg(model: str, interval: int) -> None:
    """HierFL (Liu et al.) over a single edge is FedAvg bit for bit, however rare its cloud rounds."""
    config = {"participation": 0.75, "momentum": 0.9}
    hier = tiny.run(tiny.blueprint("hierfl", model=model, cloud_interval=interval, **config), 3)
    assert identical(hier, tiny.run(tiny.blueprint("fedavg", model=model, **config), 3))


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fedprox_without_pull_is_fedavg(optimizer: str, bn: str) -> None:
    """FedProx (Li et al.) with mu = 0 is FedAvg bit for bit."""
    config = {"participation": 0.75, "local_epochs": 2, "bn": bn, **OPTIMIZERS[optimizer]}
    prox = tiny.run(tiny.blueprint("fedprox", model="batch", mu=0.0, **config))
    assert identical(prox, tiny.run(tiny.blueprint("fedavg", model="batch", **config)))


@pytest.mark.parametrize("model", tiny.CUTS)
def test_v3_on_identical_data_is_v1(model: str) -> None:
    """Clients that see the same batch never drift apart, so averaging their client parts changes nothing."""
    one = tiny.memory(model, 5, 4)
    copies = tiny.Memory(one.inputs.repeat(3, *[1] * (one.inputs.dim() - 1)), tiny.np.tile(one.labels, 3))
    config = {"train": copies, "batch_size": 5, "local_epochs": 2, "momentum": 0.9}
    v1 = tiny.run(tiny.blueprint("splitfed_v1", (5, 5, 5), model, **config))
    v3 = tiny.run(tiny.blueprint("splitfed_v3", (5, 5, 5), model, **config))
    for client in range(3):
        own = {name.removeprefix(f"client{client}/"): value for name, value in v3.items()}
        assert difference({name: own[name] for name in v1}, v1) < 1e-12


def test_joint_on_one_client_at_a_time_is_v2() -> None:
    """With one participant a round, stepping jointly and stepping in turns are the same."""
    config = {"participation": 0.25, "momentum": 0.9}
    joint = tiny.run(tiny.blueprint("splitfed_joint", short_clients="drop_out", **config), 3)
    assert difference(joint, tiny.run(tiny.blueprint("splitfed_v2", **config), 3)) < 1e-12


def shipped(method: str, model: str, folder: Path, cut: str | None = None) -> Blueprint:
    """Two clients of 12x12 images and one of rayfl's own models, in float64."""
    keys: dict[str, Any] = {} if cut is None else {"cut_layer": cut}
    config = ExperimentConfig(
        algorithm=ALGORITHMS[method].Config(lr=0.05, momentum=0.9, weight_decay=1e-3, batch_size=4, **keys),
        data=DataConfig(
            name="synthetic",
            num_clients=2,
            root=str(folder),
            partition=PartitionConfig(kind="quantity", alpha=2.0, min_size=3),
            synthetic=SyntheticConfig(num_train=24, num_test=12, num_classes=4, height=12, width=12),
        ),
        model=ModelConfig(name=model, width=0.125, patch_size=4),
        train=TrainConfig(dtype="float64"),
    )
    return make_blueprint(config)[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", [name for name in MODELS if name != "resnet50_unet"])
def test_splitfed_v1_is_fedavg_at_every_cut_of_every_model(
    model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Unequal clients, momentum, weight decay, BatchNorm averaged: below 1e-10 in float64."""
    folder = tmp_path_factory.getbasetemp() / "shipped"
    federated = tiny.run(shipped("fedavg", model, folder))
    cuts = legal_cuts(shipped("fedavg", model, folder).model())
    assert cuts
    for cut in cuts:
        assert difference(tiny.run(shipped("splitfed_v1", model, folder, cut)), federated) < 1e-10, cut
