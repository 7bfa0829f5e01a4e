"""FedSGA: what it is in its limits, and its rounds in plain torch."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tiny
import torch
from tiny import difference, identical
from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.sga.messages import Decision

EQUAL = (6, 6, 6, 6)
SMALL: dict[str, Any] = {"d_z": 8, "d_hid": 7, "d_e": 3}


def plan_of(
    sizes: Sequence[int] = EQUAL, model: str = "group", *, bn: str = "average", **config: Any
) -> tiny.Blueprint:
    """Clients that choose from all cuts of a tiny model."""
    return tiny.blueprint(
        "fedsga", sizes, model, bn=bn, **{"candidates": tiny.CUTS[model], **SMALL, **config}
    )


def at_depths(monkeypatch: pytest.MonkeyPatch, depths: Sequence[int]) -> None:
    """Whatever is observed, clients cut there."""
    decide = "rayfl.algorithms.sga.fed_server.DecidingServer.decide"

    def decided(server: Any, observations: Mapping[int, Any], t: int) -> dict[int, Decision]:
        server.depths = {client: depths[client] for client in observations}
        return {client: Decision(0.5, depths[client]) for client in observations}

    decided.per_client = True  # type: ignore[attr-defined]
    monkeypatch.setattr(decide, decided)


def without_own_blocks(state: tiny.State, last: str) -> tiny.State:
    """The backbone's entries by the backbone's names."""
    kept = {name: value for name, value in state.items() if not name.startswith("signal.")}
    kept.pop("harmoniser.depth")
    return {name.replace("harmoniser.classifier", last): value for name, value in kept.items()}


LIMITS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"optimizer": "adam", "lr": 0.01, "participation": 0.5},
    {"sizes": (7, 3, 5), "weights": "uniform", "reset_optimizer": "keep", "momentum": 0.9},
    {"sizes": (7, 3, 5), "weights": "uniform", "short_clients": "drop_out", "weight_decay": 0.01},
]


@pytest.mark.parametrize(
    "options",
    [*LIMITS[:2], *(pytest.param(options, marks=pytest.mark.slow) for options in LIMITS[2:])],
    ids=lambda o: ",".join(map(str, o.values())),
)
@pytest.mark.parametrize("model", tiny.CUTS)
def test_without_everything_it_is_splitfed_joint(model: str, options: dict[str, Any]) -> None:
    """Static cut, no prompts, no harmonisation: the same bits at every cut, of one candidate or several."""
    last = {"mlp": "block2", "batch": "block3", "group": "block3"}[model]
    options = {"sizes": (6, 6, 6), "model": model, **options}
    for number, cut in enumerate(tiny.CUTS[model], start=1):
        joint = tiny.run(tiny.blueprint("splitfed_joint", cut_layer=cut, **options))
        for candidates in ((cut,), tiny.CUTS[model]):
            own = {"candidates": candidates, "p_ref": number if len(candidates) > 1 else 1}
            plan = tiny.blueprint("fedsga", strategy="static", ablate="all", **own, **options)
            assert identical(without_own_blocks(tiny.run(plan), last), joint), (cut, candidates)


@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_with_its_head_alone_it_is_splitfed_joint_with_that_head(model: str) -> None:
    """One candidate, no prompts, lambda 0: the same initial draw and the same bits ever after."""
    options: dict[str, Any] = {"sizes": EQUAL, "model": model, "momentum": 0.9}
    head = tiny.blueprint("splitfed_joint", head="harmoniser", cut_layer=2, **options)
    own = {"candidates": (2,), "strategy": "static", "num_prompts": 0, "lambda_align": 0.0}
    plan = tiny.blueprint("fedsga", **own, **options)
    for rounds in (0, 2):
        found, expected = tiny.run(plan, rounds), tiny.run(head, rounds)
        assert found.keys() - expected.keys() == {
            f"signal.{n}" for n in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")
        }
        assert identical({name: found[name] for name in expected}, expected)


class ByHand:
    """The equations on whole networks: nothing is cut, each client's path is one graph."""

    def __init__(self, plan: tiny.Blueprint, num_steps: int) -> None:
        self.plan, self.config, self.num_steps = plan, plan.config, num_steps
        self.shared = tiny.initial(plan)
        self.ends: tuple[int, ...] = self.shared.ends  # type: ignore[assignment]
        self.ids = range(plan.facts.num_clients)
        self.prompts = {i: self.shared.prompts.tokens.detach().clone() for i in self.ids}  # type: ignore[union-attr, operator]
        classes, d_z = tiny.NUM_CLASSES, SMALL["d_z"]
        self.prototypes, self.seen = (
            torch.zeros(classes, d_z).double(),
            torch.zeros(classes, dtype=torch.bool),
        )
        self.last_h: dict[int, Tensor] = {}
        self.last_m: dict[int, Tensor] = {}
        self.scores = {i: torch.zeros(len(self.prompts[i])).double() for i in self.ids}
        self.observed: dict[int, tuple[float, float, float]] = {}

    def shallow(self, model: Any, inputs: Tensor) -> Tensor:
        """Up to p_1 = 1: the first block and the attention to the prompts, one sample and place at a time."""
        features, eps = model.block0(inputs), model.prompts.tokens
        flat = features.reshape(*features.shape[:2], -1)
        rows = []
        for sample in flat:
            places = []
            for h in sample.T:
                weights = torch.exp(eps @ h / eps.shape[1] ** 0.5)
                places.append(h + (weights[:, None] * eps).sum(0) / weights.sum())
            rows.append(torch.stack(places, dim=1))
        return torch.stack(rows).reshape(features.shape)

    def z(self, client_model: Any, inputs: Tensor, depth: int) -> Tensor:
        """The client's blocks up to its depth, the server's above."""
        features = self.shallow(client_model, inputs)
        for place in range(self.ends[0], len(self.shared) - 1):
            features = (client_model if place < self.ends[depth - 1] else self.shared)[place](features)
        head: Any = self.shared[-1]
        centred = features - features.mean(1, keepdim=True)
        normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        normed = normed * head.norm.weight + head.norm.bias
        embedding = head.embedding[depth - 1].repeat(len(normed), 1)
        hidden = (torch.cat([normed, embedding], 1) @ head.fc1.weight.T + head.fc1.bias).relu()
        result: Tensor = hidden @ head.fc2.weight.T + head.fc2.bias
        return result

    def project(self, model: Any, shallow: Tensor) -> Tensor:
        pooled = shallow.detach().reshape(*shallow.shape[:2], -1).mean(2)
        normed = F.layer_norm(pooled, pooled.shape[1:], model.signal.norm.weight, model.signal.norm.bias)
        result: Tensor = normed @ model.signal.fc.weight.T + model.signal.fc.bias
        return result

    def cosines(self, features: Tensor) -> Tensor:
        lengths = features.square().sum(1, keepdim=True).sqrt()
        return (features / lengths) @ self.prototypes.T

    def losses(self, z: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy and lambda times the alignment, over the seen classes."""
        head: Any = self.shared[-1]
        logits = z @ head.classifier.weight.T + head.classifier.bias
        total = -logits.log_softmax(1)[range(len(labels)), labels].mean()
        if self.seen.any():
            cosines = self.cosines(z) / self.config.tau_a  # type: ignore[attr-defined]
            for b, y in enumerate(labels):
                if self.seen[y]:
                    align = -(cosines[b, y] - cosines[b, self.seen].logsumexp(0))
                    total = total + self.config.lambda_align * align / len(labels)  # type: ignore[attr-defined]
        return total

    def observe(self, i: int, model: Any, inputs: Tensor, labels: Tensor) -> None:
        with torch.no_grad():
            shallow = self.shallow(model, inputs)
            own = self.cosines(self.project(model, shallow))[range(len(labels)), labels][self.seen[labels]]
            h = shallow.reshape(*shallow.shape[:2], -1).mean((0, 2))
        alpha = torch.exp(self.scores[i] / self.config.tau_m)  # type: ignore[attr-defined]
        m = ((alpha / alpha.sum())[:, None] * self.prompts[i]).sum(0)
        drift, q = 1.0, 1.0
        if i in self.last_h:
            drift = min(((h - self.last_h[i]).norm() / (self.last_h[i].norm() + 1e-8)).item(), 5)
            q = min(((m - self.last_m[i]).norm() / (self.last_m[i].norm() + 1e-8)).item(), 5)
        self.last_h[i], self.last_m[i] = h, m
        self.observed[i] = (own.mean().item() if len(own) else 0.0, drift, q)

    def round(self, t: int, depths: Mapping[int, int]) -> None:
        """One round at given depths."""
        sizes = self.plan.facts.num_samples
        streams = {i: list(tiny.client_batches(self.plan, t, i, self.num_steps)) for i in self.ids}
        models: dict[int, Any] = {i: copy.deepcopy(self.shared) for i in self.ids}
        for i, model in models.items():
            model.prompts.tokens.data.copy_(self.prompts[i])
            self.observe(i, model, *streams[i][0])
        sums, counts = torch.zeros_like(self.prototypes), torch.zeros(tiny.NUM_CLASSES).double()
        notes: dict[int, list[Tensor]] = {i: [] for i in self.ids}
        lr = self.config.lr
        for step in range(self.num_steps):
            own, up = {}, {}
            for i, model in models.items():
                inputs, labels = streams[i][step]
                z = self.z(model, inputs, depths[i])
                for row, y in zip(z.detach(), labels, strict=True):
                    sums[y] += row
                    counts[y] += 1
                below = [p for block in model[: self.ends[depths[i] - 1]] for p in block.parameters()]
                above = list(self.shared[self.ends[0] :].named_parameters())
                loss = self.losses(z, labels)
                cosines = self.cosines(self.project(model, self.shallow(model, inputs)))
                one_minus = 1 - cosines[range(len(labels)), labels]
                phi = torch.where(self.seen[labels], one_minus, 0.0).mean()
                grads = torch.autograd.grad(
                    loss, [*below, *(p for _, p in above)], retain_graph=True, allow_unused=True
                )
                own[i] = list(zip(below, grads[: len(below)], strict=True))
                up[i] = dict(zip((n for n, _ in above), grads[len(below) :], strict=True))
                signal = list(model.signal.parameters())
                own[i] += list(zip(signal, torch.autograd.grad(phi, signal), strict=True))
            for i, model in models.items():
                tokens = model.prompts.tokens
                gradient = next(g for p, g in own[i] if p is tokens)
                notes[i].append((gradient * tokens.detach()).sum(1).abs())
                phi_s = {id(p) for p in model.signal.parameters()}
                for p, g in own[i]:
                    if g is not None:
                        factor = {"phi": 10.0, "prompt": 2.0}.get(
                            "phi" if id(p) in phi_s else "prompt" if p is tokens else "", 1.0
                        )
                        p.data -= lr * factor * g
            for name, p in self.shared[self.ends[0] :].named_parameters():
                passing = [i for i in self.ids if up[i][name] is not None]
                if passing:
                    total = sum(sizes[i] for i in passing)
                    p.data -= lr * sum(sizes[i] / total * up[i][name] for i in passing)  # type: ignore[arg-type]
        for i, model in models.items():
            self.prompts[i] = model.prompts.tokens.detach().clone()
            self.scores[i] = torch.stack(notes[i]).mean(0)
        self.average(models, depths)
        for y in range(tiny.NUM_CLASSES):
            if counts[y]:
                mean = sums[y] / counts[y]
                mu = self.config.proto_momentum if self.seen[y] else 0.0  # type: ignore[attr-defined]
                moved = mu * self.prototypes[y] + (1 - mu) * mean
                self.prototypes[y] = moved / moved.norm()
                self.seen[y] = True

    def average(self, models: Mapping[int, Any], depths: Mapping[int, int]) -> None:
        """Each block of the clients: over the copies of those that ran it; the server's for the others."""
        sizes = self.plan.facts.num_samples
        held = {n: v.clone() for n, v in self.shared.state_dict().items()}
        for place, (name, block) in enumerate(list(self.shared.named_children())[: self.ends[-1]]):
            if name != "prompts":
                for key in block.state_dict():
                    copies = [
                        (models[i][place] if place < self.ends[depths[i] - 1] else block).state_dict()[key]
                        for i in self.ids
                    ]
                    pairs = zip(sizes, copies, strict=True)
                    held[f"{name}.{key}"] = sum(n * value for n, value in pairs) / sum(sizes)  # type: ignore[assignment]
        self.shared.load_state_dict(held)


def gamma(estimator: Any, a: float, delta: float, q: float, last: float) -> float:
    """The monotone perceptron, written out."""
    first, second = F.softplus(estimator.first), F.softplus(estimator.second)
    hidden = torch.tanh(
        first @ torch.tensor([a, -delta, -q, last], dtype=torch.float64) + estimator.first_bias
    )
    return torch.sigmoid(second @ hidden + estimator.second_bias).item()


@pytest.mark.parametrize("model", ["mlp", "group"])
@pytest.mark.parametrize("sizes", [(7,), (7, 5)])
def test_rounds_by_hand(sizes: tuple[int, ...], model: str) -> None:
    """Three adaptive rounds: observations, r, depths, prompts, phi_s, alignment, averages, prototypes."""
    config = {"candidates": (1, 2), "rho": 0.0, "local_epochs": 2, "prompt_lr_mult": 2.0, "tau_a": 0.3}
    plan = plan_of(sizes, model, lambda_align=0.4, prompt_init_std=0.5, num_prompts=3, **config)
    federation = tiny.Federation(plan)
    fed, main = federation.party("fed"), federation.party("main")
    # Two clients with different pasts cut at different depths.
    fed.sufficiency = dict(enumerate((0.9, 0.1)[: len(sizes)]))
    hand = ByHand(plan, num_steps=4)
    met = set()
    for t in range(1, 4):
        last = dict(fed.sufficiency)
        federation.run(1)
        hand.round(t, fed.depths)
        for i in range(len(sizes)):
            assert fed.observed[i] == pytest.approx((*hand.observed[i], last[i]), abs=1e-9)
            r = gamma(fed.estimators.of(i), *hand.observed[i], last[i])
            assert fed.sufficiency[i] == pytest.approx(r, abs=1e-9)
            assert fed.depths[i] == (1 if r >= 0.5 else 2)
            tokens = federation.party("client", i).private["prompts.tokens"]
            assert difference({"": tokens}, {"": hand.prompts[i]}) < 1e-9
        met.add(tuple(fed.depths.values()))
        expected = {n: v for n, v in hand.shared.state_dict().items() if not n.startswith("prompts.")}
        expected["harmoniser.depth"] = torch.tensor(1)
        assert difference({**federation.weights(), "harmoniser.depth": torch.tensor(1)}, expected) < 1e-9
        found = main.prototypes()
        assert difference({"": found.directions}, {"": hand.prototypes}) < 1e-9
        assert torch.equal(found.seen, hand.seen)
    assert hand.seen.any()
    if len(sizes) == 2:
        assert (1, 2) in met
