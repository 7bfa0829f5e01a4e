"""FedProto against Tan et al. 2022: what is sent, how features are drawn to it, and predictions by it."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from test_splitfed_v3 import own
from tiny import Federation, blueprint, difference, identical
from torch import Tensor, nn

from rayfl.algorithms.fedproto import FedProto
from rayfl.algorithms.proto.prototypes import NearestPrototype, Prototypes, averaged
from rayfl.errors import UserError
from rayfl.host import Blueprint

MODES = [("eval_pass", "uniform"), ("eval_pass", "count"), ("last_epoch", "uniform"), ("last_epoch", "count")]


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def classes_of(plan: Blueprint, client: int) -> list[int]:
    """The classes that a client holds, ascending."""
    labels = plan.train.labels[plan.client_rows[client]]  # type: ignore[attr-defined]
    return sorted(set(labels.tolist()))


def body(network: nn.Sequential, inputs: Tensor) -> Tensor:
    """What enters the last block."""
    for block in list(network)[:-1]:
        inputs = block(inputs)
    return inputs


def means(features: list[Tensor], labels: list[Tensor]) -> dict[int, tuple[Tensor, int]]:
    """Mean and count by class."""
    every, label = torch.cat(features), torch.cat(labels)
    return {k: (every[label == k].mean(0), int((label == k).sum())) for k in label.unique().tolist()}


def plain(plan: Blueprint, rounds: int) -> tuple[list[tiny.State], dict[int, Tensor]]:
    """FedProto, sample by sample: the clients' models and the global prototypes."""
    config: Any = plan.config
    models = [tiny.initial(plan) for _ in plan.client_rows]
    known: dict[int, Tensor] = {}
    participants = Federation(plan).algorithm
    for t in range(1, rounds + 1):
        sent: dict[int, list[tuple[Tensor, int]]] = defaultdict(list)
        for client in participants.sample(t).ids:
            network, stream = models[client], list(tiny.client_batches(plan, t, client))
            optimizer, met = tiny.optimizer_for(plan, network, t), []
            for inputs, labels in stream:
                features = body(network, inputs)
                met.append(features.detach())
                loss = tiny.loss(network[-1](features), labels)
                for x, y in zip(features, labels.tolist(), strict=True):
                    if y in known:
                        loss = loss + config.lambda_proto * (x - known[y]).square().sum() / features.numel()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if config.proto_mode == "last_epoch":
                last = len(stream) // config.local_epochs
                found = means(met[-last:], [labels for _, labels in stream[-last:]])
            else:
                inputs, labels = plan.train.batch(plan.client_rows[client], torch.float64, "cpu")
                with torch.no_grad():
                    found = means([body(network.eval(), inputs)], [labels])
                network.train()
            for k, pair in found.items():
                sent[k].append(pair)
        for k, pairs in sent.items():
            mass = [count if config.proto_weights == "count" else 1 for _, count in pairs]
            parts = [mean * m / sum(mass) for (mean, _), m in zip(pairs, mass, strict=True)]
            known[k] = torch.stack(parts).sum(0)
    return [tiny.state_of(network) for network in models], known


@pytest.mark.parametrize(("mode", "weights"), MODES)
@pytest.mark.parametrize("model", tiny.CUTS)
def test_plain_loop(model: str, mode: str, weights: str) -> None:
    """Models, statistics of BatchNorm and prototypes over three rounds of three of the four clients."""
    plan = blueprint(
        "fedproto", model=model, lambda_proto=3.0, proto_mode=mode, proto_weights=weights,
        local_epochs=2, momentum=0.5, participation=0.75,
    )  # fmt: skip
    models, known = plain(plan, 3)
    federation = Federation(plan).run(3)
    found = federation.weights()
    assert all(difference(own(found, client), models[client]) < 1e-12 for client in range(4))
    assert difference(named(federation.party("fed").known), named(known)) < 1e-12


def named(prototypes: dict[int, Tensor]) -> tiny.State:
    return {str(label): vector for label, vector in sorted(prototypes.items())}


@pytest.mark.parametrize("model", tiny.CUTS)
def test_without_pull_training_is_local(model: str) -> None:
    """lambda = 0: to the bit the model that each client trains by itself."""
    plan = blueprint("fedproto", model=model, lambda_proto=0.0, momentum=0.9)
    found = Federation(plan).run(3).weights()
    for client in range(4):
        network = tiny.initial(plan)
        for t in (1, 2, 3):
            tiny.fit(network, tiny.optimizer_for(plan, network, t), tiny.client_batches(plan, t, client))
        assert identical(own(found, client), tiny.state_of(network))


@pytest.mark.parametrize("pull", [0.0, 1.0])
def test_others_matter_by_the_pull_alone(pull: float) -> None:
    """Other samples at client 3 reach client 0's model from round 2 on, and only with lambda > 0."""
    plan = blueprint("fedproto", lambda_proto=pull)
    assert isinstance(plan.train, tiny.Memory)
    inputs = plan.train.inputs.clone()
    inputs[plan.client_rows[3]] += 1.0
    other = replace(plan, train=replace(plan.train, inputs=inputs))
    runs = [Federation(plan).run(1), Federation(other).run(1)]
    assert identical(*(own(run.weights(), 0) for run in runs))
    assert identical(*(own(run.run(1).weights(), 0) for run in runs)) == (pull == 0.0)


def test_round_one_knows_no_prototypes() -> None:
    """Whatever lambda, the first round is the same to the bit; the second isn't."""
    runs = [Federation(blueprint("fedproto", lambda_proto=pull)).run(1) for pull in (0.0, 0.1, 10.0)]
    first = [run.weights() for run in runs]
    assert identical(first[0], first[1])
    assert identical(first[0], first[2])
    second = [run.run(1).weights() for run in runs]
    assert difference(second[0], second[1]) > 1e-6
    assert difference(second[1], second[2]) > 1e-6


def labelled(plan: Blueprint, *owned: tuple[int, ...]) -> Blueprint:
    """The plan with labels that go round each client's classes."""
    assert isinstance(plan.train, tiny.Memory)
    labels = plan.train.labels.copy()
    for rows, classes in zip(plan.client_rows, owned, strict=True):
        labels[rows] = np.resize(classes, len(rows))
    return replace(plan, train=replace(plan.train, labels=labels))


@pytest.mark.parametrize("weights", ["uniform", "count"])
def test_a_class_of_one_client_has_its_prototype(weights: str) -> None:
    """To the bit; a shared class has neither client's."""
    plan = labelled(blueprint("fedproto", (4, 6), proto_weights=weights), (0, 1), (1, 2))
    sent = [Federation(plan).party("client", i).train_towards(Prototypes.of({}), 1) for i in range(2)]
    known = Federation(plan).run(1).party("fed").known
    assert [one.classes for one in sent] == [(0, 1), (1, 2)]
    assert torch.equal(known[0], sent[0].vectors[0])
    assert torch.equal(known[2], sent[1].vectors[1])
    share = 0.5 if weights == "uniform" else 2 / 5
    expected = share * sent[0].vectors[1] + (1 - share) * sent[1].vectors[0]
    assert (known[1] - expected).abs().max() < 1e-15


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("weights", "numbers"), [("uniform", 1), ("count", 2)])
@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_ledger(model: str, weights: str, numbers: int, dtype: str) -> None:
    """d values per class and sender, with its number, and with its count where that weighs; no weights."""
    plan = labelled(
        blueprint("fedproto", (4, 6, 3, 4), model, dtype=dtype, proto_weights=weights, participation=0.75),
        (0, 1), (1,), (1,), (1, 2),
    )  # fmt: skip
    federation = Federation(plan).run(2)
    first, second = (federation.algorithm.sample(t).ids for t in (1, 2))
    up = [sum(len(classes_of(plan, i)) for i in ids) for ids in (first, second)]
    known = len({k for i in first for k in classes_of(plan, i)})
    size = 4 * (8 if dtype == "float64" else 4)
    assert federation.traffic(1) == {
        ("client-fed", "up", "prototype"): size * up[0],
        ("client-fed", "up", "counts"): 8 * numbers * up[0],
    }
    assert federation.traffic(2) == {
        ("client-fed", "down", "prototype"): size * known * 3,
        ("client-fed", "down", "counts"): 8 * known * 3,
        ("client-fed", "up", "prototype"): size * up[1],
        ("client-fed", "up", "counts"): 8 * numbers * up[1],
    }


@pytest.mark.parametrize("shape", [(5,), (2, 3, 3)])
def test_pull_is_the_mean_square(shape: tuple[int, ...]) -> None:
    """sum (r - t)^2 / (b d) over vectors or maps; a class without a prototype adds to b alone."""
    prototypes = Prototypes.of({7: vectors(*shape, seed=1), 2: vectors(*shape, seed=2)})
    features, labels = vectors(4, *shape).requires_grad_(), torch.tensor([2, 7, 5, 2])
    pull = prototypes.pull(features, labels)
    apart = features[[0, 1, 3]] - torch.stack([vectors(*shape, seed=k) for k in (2, 1, 2)])
    assert pull.item() == pytest.approx((apart**2).sum().item() / (4 * math.prod(shape)), rel=1e-14)
    (gradient,) = torch.autograd.grad(pull, features)
    assert (gradient[[0, 1, 3]] - 2 * apart / (4 * math.prod(shape))).abs().max() < 1e-15
    assert not gradient[2].any()


def test_no_pull_at_the_prototype() -> None:
    """Features that are the prototypes feel nothing; without any prototype, none do."""
    prototypes = Prototypes.of({0: vectors(5, seed=1), 1: vectors(5, seed=2)})
    labels = torch.tensor([1, 0, 1])
    features = prototypes.vectors[labels].clone().requires_grad_()
    assert not torch.autograd.grad(prototypes.pull(features, labels), features)[0].any()
    nothing = Prototypes.of({}).pull(vectors(3, 5), labels)
    assert (nothing.item(), nothing.dtype) == (0.0, torch.float64)


def test_order_of_clients_is_nothing() -> None:
    """Who is called what changes no prototype beyond rounding."""
    sent = [
        Prototypes.of(
            {k: vectors(6, seed=10 * i + k) for k in range(i % 3, 4)}, {k: i + k + 1 for k in range(4)}
        )
        for i in range(5)
    ]
    for some in (sent, [replace(one, counts=()) for one in sent]):
        forth, back = averaged(dict(enumerate(some)), 5), averaged(dict(enumerate(reversed(some))), 5)
        assert difference(named(forth), named(back)) < 1e-15


def test_weights_of_a_class_sum_to_one() -> None:
    """By hand: 1 with 3 samples and 5 with 1 sample make 3, or 2 by count; nothing is sent of the rest."""
    pair = [Prototypes.of({4: torch.tensor([value])}, {4: n}) for value, n in [(1.0, 3), (5.0, 1)]]
    assert averaged(dict(enumerate(pair)), 2)[4].item() == 2.0
    alike = [replace(one, counts=()) for one in pair]
    assert averaged(dict(enumerate(alike)), 2)[4].item() == 3.0
    assert averaged({}, 2) == {}


@pytest.mark.parametrize("model", tiny.CUTS)
def test_by_count_over_one_extractor_is_the_pooled_mean(model: str) -> None:
    """While all models are still the initial one, the class means over everybody's samples."""
    plan, alike = (
        blueprint("fedproto", model=model, proto_weights=weights, local_epochs=0)
        for weights in ("count", "uniform")
    )
    inputs, labels = plan.train.batch(np.arange(len(plan.train)), torch.float64, "cpu")
    with torch.no_grad():
        pooled = means([body(tiny.initial(plan).eval(), inputs)], [labels])
    known = Federation(plan).run(1).party("fed").known
    assert difference(named(known), named({k: mean for k, (mean, _) in pooled.items()})) < 1e-15
    assert difference(named(known), named(Federation(alike).run(1).party("fed").known)) > 1e-3


def test_classes_that_nobody_sent_keep_their_prototypes() -> None:
    """With one participant a round, the others' classes stay to the bit, and stay with the receivers."""
    plan = labelled(blueprint("fedproto", (4, 4, 4), participation=0.34), (0,), (1,), (2,))
    federation, met = Federation(plan), set()
    before: dict[int, Tensor] = {}
    for t in range(1, 9):
        (chosen,) = federation.algorithm.sample(t).ids
        known = dict(federation.run(1).party("fed").known)
        met.add(chosen)
        assert known.keys() == met
        assert all(torch.equal(known[k], before[k]) for k in before if k != chosen)
        assert chosen not in before or not torch.equal(known[chosen], before[chosen])
        before = known
    assert met == {0, 1, 2}
    assert federation.party("fed").prototypes().classes == (0, 1, 2)


def test_what_is_sent_has_no_graph() -> None:
    for mode in ("eval_pass", "last_epoch"):
        federation = Federation(blueprint("fedproto", proto_mode=mode))
        sent = federation.party("client").train_towards(Prototypes.of({}), 1)
        assert not sent.vectors.requires_grad
        assert sent.classes == tuple(classes_of(federation.plan, 0))


def test_nearest_by_hand() -> None:
    """Class 2 isn't the client's, class 3 has no prototype: neither is predicted, however near."""
    prototypes = Prototypes.of({k: torch.tensor([x, 0.0]) for k, x in [(0, 0.0), (1, 4.0), (2, 9.0)]})
    logits = NearestPrototype(prototypes, {0, 1, 3}, 4)(torch.tensor([[1.0, 0.0], [9.0, 2.0]]))
    # Squared distances to 0 and 4, halved: 1/2, 9/2; 85/2, 29/2. The others are 100 beyond the farther.
    expected = [[-0.5, -4.5, -104.5, -104.5], [-42.5, -14.5, -142.5, -142.5]]
    assert (logits - torch.tensor(expected)).abs().max() < 1e-5
    for nobody in (NearestPrototype(Prototypes.of({}), {0}, 3), NearestPrototype(prototypes, {3}, 3)):
        assert torch.equal(nobody(torch.ones(2, 2)), torch.zeros(2, 3))


@pytest.mark.parametrize("model", ["mlp", "batch"])
@pytest.mark.parametrize("predict", ["head", "prototype"])
def test_scores(predict: str, model: str) -> None:
    """Each client's own model in evaluation mode, on all test rows and on its own, by head or by distance."""
    plan = labelled(blueprint("fedproto", model=model, predict=predict), (0, 1), (2,), (0, 1, 2), (1, 2))
    federation = Federation(plan)
    for rounds in (0, 2):
        federation.run(rounds)
        found, known = federation.weights(), federation.party("fed").known
        scores = federation.fleet.gather(
            federation.algorithm.clients.score(*federation.algorithm.personal_model(rounds))
        )
        for client, pair in scores.items():
            network = tiny.initial(plan).eval()
            network.load_state_dict(own(found, client))
            for score, rows in zip(pair, (np.arange(12), plan.client_test_rows[client]), strict=True):
                with torch.no_grad():
                    inputs, _ = plan.test.batch(rows, torch.float64, "cpu")
                    expected = list(predictions(plan, client, network, inputs, known))
                assert score.predictions.tolist() == expected
                assert 0 < score.loss < 12 * 150


def predictions(
    plan: Blueprint, client: int, network: nn.Sequential, inputs: Tensor, known: dict[int, Tensor]
) -> Iterator[int]:
    """Row by row."""
    config: Any = plan.config
    for features, logits in zip(body(network, inputs), network(inputs), strict=True):
        if config.predict == "head":
            yield int(logits.argmax())
        else:
            classes = [k for k in classes_of(plan, client) if k in known]
            yield min(classes, key=lambda k: float((features - known[k]).square().sum())) if classes else 0


def test_prototypes_travel_for_scoring_only_where_they_predict() -> None:
    for predict, sent in [("head", 0), ("prototype", 4 * 3 * (4 * 8 + 8))]:
        federation = Federation(blueprint("fedproto", predict=predict)).run(1)
        with federation.fleet.phase("evaluation"):
            federation.algorithm.clients.score(*federation.algorithm.personal_model(1))
            federation.fleet.settle()
        assert len(federation.party("fed").known) == 3
        assert federation.fleet.ledger.total(phase="evaluation") == sent


@pytest.mark.parametrize(("mode", "weights"), MODES)
def test_sealed_is_local(mode: str, weights: str) -> None:
    """Hosts that only exchange serialised copies give the same models, prototypes, bytes and predictions."""
    plan = blueprint(
        "fedproto", model="batch", proto_mode=mode, proto_weights=weights, predict="prototype",
        participation=0.75,
    )  # fmt: skip
    found = []
    for fleet in (None, tiny.sealed(plan, client_actors=2, placement="separate")):
        federation = Federation(plan, fleet).run(3)
        algorithm = federation.algorithm
        with federation.fleet.phase("evaluation"):
            scores = algorithm.gather(algorithm.clients.score(*algorithm.personal_model(3)))
            federation.fleet.settle()
        predicted = [part.predictions.tolist() for pair in scores.values() for part in pair]
        known = named(federation.party("fed").known)
        found.append((federation.weights(), known, predicted, +federation.fleet.ledger.bytes))
    (local, sealed) = found
    assert identical(local[0], sealed[0])
    assert identical(local[1], sealed[1])
    assert local[2:] == sealed[2:]


def test_models_without_a_classifier_are_refused() -> None:
    """A mask per image has no class to have a prototype of."""
    unet = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 1, 1))
    with pytest.raises(UserError, match="take a dataset and a model for classification"):
        FedProto.extended(FedProto.Config(), unet, (3, 8, 8), 0)
