"""BESplit (spec oracles B-1, B-6, B-10): what it is without its parts, who gets which gradient, its bytes."""

from collections.abc import Mapping
from typing import Any

import pytest
import tiny
import torch
from tiny import difference, identical

from rayfl import cutting
from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.bes.client import AssistedClient
from rayfl.algorithms.bes.config import (
    ContributionConfig,
    DistillationConfig,
    PairingConfig,
    RecordConfig,
)
from rayfl.algorithms.bes.distillation import combined, evidence_losses, relation_loss
from rayfl.algorithms.bes.evidence import evidence, losses
from rayfl.host import Learner
from rayfl.messages import Gradient, SmashedBatch

NO_EA = ContributionConfig(ablate="off")
NO_BCC = PairingConfig(mode="off")
NO_DTD = DistillationConfig(enabled=False)
PLAIN: dict[str, Any] = {"ea": NO_EA, "bcc": NO_BCC, "dtd": NO_DTD}
EAGER = PairingConfig(bias_threshold="fixed", zeta=0.0)
"""Everybody who can gain by it pairs."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial": {"participation": 0.5, "momentum": 0.9},
    "uniform": {"weights": "uniform", "loss_reduction": "sum"},
    "kept": {"bn": "local", "optimizer": "adam", "lr": 0.01, "reset_optimizer": "keep"},
    "per batch": {"reset_optimizer": "per_batch", "momentum": 0.9},
    "single precision": {"dtype": "float32"},
    "dropout": {"dropout_rate": 0.4, "local_epochs": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("model", tiny.CUTS)
def test_without_its_parts_it_is_splitfed_v1(model: str, options: dict[str, Any]) -> None:
    """Cross-entropy, EA, BCC and DTD off: every bit and every byte."""
    shared = {"weights": "size", **options}
    found = tiny.Federation(tiny.blueprint("besplit", model=model, loss="ce", **PLAIN, **shared)).run(3)
    v1 = tiny.Federation(tiny.blueprint("splitfed_v1", model=model, **shared)).run(3)
    assert identical(found.weights(), v1.weights())
    assert found.traffic(3) == v1.traffic(3)


class EvidentialV1(ALGORITHMS["splitfed_v1"]):  # type: ignore[misc]
    """SplitFed v1 with an evidential loss."""

    class MainServer(ALGORITHMS["splitfed_v1"].MainServer):  # type: ignore[name-defined,misc]
        """Its replicas."""

        def backpropagate(self, learner: Learner, batch: SmashedBatch, share: float = 1.0) -> Gradient:
            inputs = cutting.entering(batch.activations)
            config = ALGORITHMS["besplit"].Config().evidence  # type: ignore[attr-defined]
            losses(learner.forward(inputs), batch.labels, self.t, config).mean().backward()
            return self.answer(inputs, share)


@pytest.mark.parametrize("bcc", [NO_BCC, PairingConfig(rho_max=0.0, zeta=0.0, noise=0.0)], ids=["off", "0"])
@pytest.mark.parametrize("model", tiny.CUTS)
def test_without_exchange_it_is_splitfed_v1_with_its_loss(model: str, bcc: PairingConfig) -> None:
    """B-1: uniform weights, nothing exchanged, no auxiliary model."""
    options: dict[str, Any] = {"weights": "uniform", "momentum": 0.9, "participation": 0.75}
    found = tiny.run(tiny.blueprint("besplit", model=model, ea=NO_EA, bcc=bcc, dtd=NO_DTD, **options), 3)
    assert identical(found, tiny.run(tiny.blueprint(EvidentialV1, model=model, **options), 3))


def test_clients_alike_do_not_pair() -> None:
    """What sampling noise explains is no bias: the default threshold leaves random labels alone."""
    federations = [
        tiny.Federation(tiny.blueprint("besplit", bcc=bcc)).run(3) for bcc in (PairingConfig(), NO_BCC)
    ]
    assert federations[0].party("main").calibration.deviations
    assert federations[0].party("main").calibration.planned == []
    assert identical(*(federation.weights() for federation in federations))


def averaged(fed: Any) -> dict[str, Any]:
    """Notes what the fed server's next average is made of."""
    seen: dict[str, Any] = {}
    average = fed.average

    def noted(updates: Mapping[int, Any], masses: Mapping[int, float]) -> None:
        seen.update(states={i: dict(update.weights) for i, update in updates.items()}, masses=masses)
        average(updates, masses)

    fed.average = noted
    return seen


def test_evidence_weighs_both_halves() -> None:
    """Averages by the weights that records give; ``size`` multiplies them by samples."""
    for weights in ("uniform", "size"):
        federation = tiny.Federation(tiny.blueprint("besplit", weights=weights, bcc=NO_BCC, dtd=NO_DTD))
        fed = federation.party("fed")
        seen = averaged(fed)
        federation.run(1)
        sizes = tiny.SIZES if weights == "size" else (1,) * 4
        expected = [federation.party("main").masses[i] * sizes[i] for i in range(4)]
        assert list(seen["masses"].values()) == pytest.approx(expected)
        assert len({round(mass, 6) for mass in federation.party("main").masses.values()}) == 4
        after = federation.weights()
        mean = tiny.average(list(seen["states"].values()), expected)
        assert difference({name: after[name] for name in mean}, mean) < 1e-12
        shares = [federation.algorithm.report(1)[f"besplit/weight/client{i}"] for i in range(4)]
        assert shares == pytest.approx([mass / sum(expected) for mass in expected])


def skewed(model: str = "mlp", **options: Any) -> tiny.Blueprint:
    """Four clients that make two pairs, of whom each lacks what its partner has, in batches of 6."""
    train = tiny.memory(model, 24, 1)
    labels = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 2, 2]
    train = tiny.Memory(train.inputs, tiny.np.array(labels))
    options = {"bcc": EAGER, "batch_size": 6, "local_epochs": 2, **options}
    return tiny.blueprint("besplit", (6, 6, 6, 6), model, train=train, **options)


def steps_of(federation: tiny.Federation) -> list[dict[str, Any]]:
    """Notes each exchange of the next rounds: who, with what, from which weights, and what came of it."""
    main, seen = federation.party("main"), []
    together = main.together

    def noted(pair: Any, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
        clients = (pair.first, pair.second)
        before = [tiny.state_of(main._replica(client).model) for client in clients]
        found = together(pair, smashed)
        after = [tiny.state_of(main._replica(client).model) for client in clients]
        batches = [smashed[client] for client in clients]
        seen.append({"pair": pair, "batches": batches, "before": before, "after": after, "gradients": found})
        return dict(found)

    main.together = noted
    return seen


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("bn", ["joint", "separate"])
@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_an_exchange_by_hand(model: str, bn: str, scale: bool) -> None:
    """B-6: g_i is the derivative of L_i + L_j by z_i, replicas step with their own loss; classes whose giver
    has none in the batch stay."""
    bcc = PairingConfig(bias_threshold="fixed", zeta=0.0, bn=bn, scale=scale)  # type: ignore[arg-type]
    plan = skewed(model, bcc=bcc, batch_size=4, weights="size")
    federation = tiny.Federation(plan).run(1)
    seen = steps_of(federation)
    federation.run(1)
    config = plan.config.evidence  # type: ignore[attr-defined]
    assert len(seen) >= 4
    for step in seen:
        pair, batches = step["pair"], step["batches"]
        deviations = federation.party("main").calibration.deviations
        rho = []
        for n in range(3):
            i = deviations[pair.first][n] > deviations[pair.second][n]
            giver = batches[0 if i else 1].labels
            rho.append(pair.rho[n] if (giver == n).any() else 0.0)
        z = [batch.activations.clone().requires_grad_() for batch in batches]
        total, parts = torch.zeros(()), []
        for i, j in ((0, 1), (1, 0)):
            part = tiny.cut_parts(plan)["main"]
            part.load_state_dict(step["before"][i])
            own = torch.tensor([1 - rho[n] for n in batches[i].labels])
            rows = [b for b, n in enumerate(batches[j].labels) if rho[n] > 0]
            factor = len(own) / len(batches[j].labels) if scale else 1.0
            lent = torch.tensor([factor * rho[batches[j].labels[b]] for b in rows])
            if bn == "joint" or (model == "batch" and len(rows) == 1) or not rows:
                logits = part(torch.cat([z[i], z[j][rows]]))
            else:
                logits = torch.cat([part(z[i]), part(z[j][rows])])
            labels = torch.cat([batches[i].labels, batches[j].labels[rows]])
            counts = torch.cat([own, lent])
            loss = (counts * losses(logits, labels, 2, config)).sum() / counts.sum()
            parts.append((part, loss))
            total = total + loss
        total.backward()
        for i, client in enumerate((pair.first, pair.second)):
            found = step["gradients"][client].values
            assert found.shape == z[i].shape
            assert (found - z[i].grad).abs().max() < 1e-12
            part = parts[i][0]
            with torch.no_grad():
                for parameter in part.parameters():
                    parameter -= 0.1 * parameter.grad
            assert difference(tiny.state_of(part), step["after"][i]) < 1e-12


@pytest.mark.parametrize("where", ["features", "labels"])
def test_what_others_send_goes_nowhere_else(where: str) -> None:
    """B-6: a client's first gradients of a round do not see a partner's features, nor anything of a client
    outside the pair: bit for bit. Labels of the partner do count."""
    found = []
    for changed in (False, True):
        federation = tiny.Federation(skewed()).run(1)
        main = federation.party("main")
        main.receive(main.weights(), 2)
        main.match((0, 1, 2, 3))
        (partner,) = [{pair.first, pair.second} - {1} for pair in main.calibration.planned if pair.first == 1]
        smashed = {}
        for client in range(4):
            draw = torch.Generator().manual_seed(client)
            rows = federation.plan.client_rows[client]
            labels = torch.from_numpy(federation.plan.train.labels[rows])
            features = torch.randn(6, 5, dtype=torch.float64, generator=draw)
            if changed and client == 1:
                features, labels = (
                    (features + 1, labels) if where == "features" else (features, labels.flip(0) * 0)
                )
            smashed[client] = SmashedBatch(features, labels)
        found.append(main.train_step(smashed))
    moved = {i for i in range(4) if not torch.equal(found[0][i].values, found[1][i].values)}
    assert moved == ({1} if where == "features" else {1} | partner)


@pytest.mark.parametrize("teacher", ["global_frozen", "current"])
@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_auxiliary_models_change_nothing_else(model: str, bn: str, teacher: Any) -> None:
    """B-10: BESplit-G is the same bit for bit with auxiliary models or without; only evidence crosses."""
    runs = [
        tiny.Federation(skewed(model, bn=bn, dtd=dtd, momentum=0.9)).run(3)
        for dtd in (DistillationConfig(teacher=teacher), NO_DTD)
    ]
    assert identical(runs[0].weights(), runs[1].weights())
    crossed = [run.traffic(3) for run in runs]
    assert crossed[0].pop(("client-main", "down", "evidence")) == 4 * 12 * 3 * 8
    assert crossed[0] == crossed[1]


@pytest.mark.parametrize("loss", ["edl", "ce"])
@pytest.mark.parametrize("teacher", ["global_frozen", "current"])
@pytest.mark.parametrize("model", ["mlp", "batch"])
def test_an_auxiliary_model_by_hand(model: str, teacher: Any, loss: Any) -> None:
    """A plain loop: own loss, relations to the features that were sent, evidence of the server-side model."""
    dtd = DistillationConfig(teacher=teacher)
    plan = tiny.blueprint("besplit", (8, 6), model, dtd=dtd, bcc=NO_BCC, loss=loss, momentum=0.9)
    federation = tiny.Federation(plan)
    config = plan.config.evidence  # type: ignore[attr-defined]
    velocity: dict[int, Any] = {}
    students = {}
    for client in range(2):
        students[client] = tiny.cut_parts(plan)["auxiliary"]
        velocity[client] = torch.optim.SGD(students[client].parameters(), 0.1, momentum=0.9)
    for t in (1, 2):
        start = federation.weights()
        for client in range(2):
            parts = tiny.cut_parts(plan)
            for name in ("client", "main"):
                parts[name].load_state_dict({k: start[k] for k in parts[name].state_dict()})
            frozen = tiny.cut_parts(plan)["main"].eval()
            frozen.load_state_dict(parts["main"].state_dict())
            optimizers = [tiny.optimizer_for(plan, parts[name], t) for name in ("client", "main")]
            student = students[client]
            for inputs, labels in tiny.client_batches(plan, t, client):
                smashed = parts["client"](inputs)
                logits = parts["main"](smashed)
                read = logits if teacher == "current" else frozen(smashed)
                taught = evidence(read.detach(), config)

                def cost(logits: torch.Tensor, labels: torch.Tensor = labels, t: int = t) -> torch.Tensor:
                    return (
                        losses(logits, labels, t, config).mean()
                        if loss == "edl"
                        else tiny.loss(logits, labels)
                    )

                features = student[:-1](inputs)
                mine = student[-1](features)
                pooled = smashed.detach()
                if pooled.dim() == 4:
                    pooled = torch.nn.functional.adaptive_avg_pool2d(pooled, 4).flatten(1)
                total = combined(
                    cost(mine),
                    relation_loss(pooled, features, dtd),
                    evidence_losses(taught, evidence(mine, config), dtd).mean(),
                    dtd,
                )
                velocity[client].zero_grad()
                total.backward()
                velocity[client].step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                cost(logits).backward()
                for optimizer in optimizers:
                    optimizer.step()
        federation.run(1)
        for client in range(2):
            own = dict(federation.party("client", client).own)
            assert difference(own, tiny.state_of(students[client])) < 1e-10


@pytest.mark.parametrize("bn", ["average", "local"])
def test_a_teacher_reads_all_batches_at_once_or_with_their_clients_own_statistics(bn: str) -> None:
    """In evaluation mode; a client that keeps its own statistics is met with these."""
    plan = tiny.blueprint("besplit", model="batch", bn=bn)
    main = tiny.Federation(plan).run(2).party("main")
    main.receive(main.weights(), 3)
    draw = torch.Generator().manual_seed(0)
    smashed = {
        client: SmashedBatch(
            torch.rand(2 + client, 4, 4, 4, dtype=torch.float64, generator=draw), torch.zeros(2 + client)
        )
        for client in range(4)
    }
    found = main.teacher.evidence(smashed, main.kept_by_client)
    assert (set(main.kept_by_client) == {0, 1, 2, 3}) is (bn == "local")
    for client, batch in smashed.items():
        own = main.kept_by_client[client].buffers if bn == "local" else {}
        part = tiny.cut_parts(plan)["main"].eval()
        part.load_state_dict({**main.weights(), **own})
        wanted = evidence(part(batch.activations).detach(), plan.config.evidence)  # type: ignore[attr-defined]
        assert (found[client] - wanted).abs().max() < 1e-12


def test_auxiliary_models_may_be_averaged() -> None:
    """``wa_sync: fedavg``: by the same weights; whoever takes part gets the average first. One way each a
    round."""
    dtd = DistillationConfig(wa_sync="fedavg", lambda_g=0.0)
    plan = tiny.blueprint("besplit", dtd=dtd, participation=0.5)
    federation = tiny.Federation(plan)
    fed, clients = federation.party("fed"), [federation.party("client", i) for i in range(4)]
    average = dict(fed.auxiliary())
    assert identical(average, tiny.state_of(tiny.cut_parts(plan)["auxiliary"]))
    for t in (1, 2, 3):
        begun: dict[int, tiny.State] = {}
        for i, client in enumerate(clients):

            def noted(got: Any, i: int = i, begun: Any = begun) -> None:
                AssistedClient.renew(clients[i], got)
                begun[i] = dict(clients[i].own)

            client.renew = noted
        federation.run(1)
        chosen = federation.algorithm.sample(t).ids
        assert sorted(begun) == list(chosen)
        assert all(identical(state, average) for state in begun.values())
        masses = [federation.party("main").masses[i] for i in chosen]
        average = dict(fed.auxiliary())
        assert difference(average, tiny.average([dict(clients[i].own) for i in chosen], masses)) < 1e-12
    auxiliary = tiny.num_bytes(average)
    client = tiny.num_bytes(tiny.cut_parts(plan)["client"].state_dict())
    traffic = federation.traffic(1)
    assert traffic["client-fed", "up", "weights"] == 2 * (auxiliary + client)
    assert traffic["client-fed", "down", "weights"] == 2 * (auxiliary + client)
    assert ("client-main", "down", "evidence") not in traffic


def test_what_is_not_finite_is_no_evidence() -> None:
    """A record stays sound, and its client counts least."""
    main = tiny.Federation(tiny.blueprint("besplit", csr=RecordConfig(eta=1.0))).run(1).party("main")
    main.receive(main.weights(), 2)
    logits = torch.full((4, 3), float("nan"), dtype=torch.float64)
    main.note(0, logits, torch.tensor([0, 1, 2, 0]))
    assert main.records[0].mean_evidence().tolist() == torch.zeros(3, 3).tolist()
    masses = main.weigh(dict.fromkeys(range(4)))
    assert min(masses, key=lambda client: masses[client]) == 0
    assert 0 < masses[0] < 0.01


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize(("model", "cut"), [("mlp", 2), ("batch", 1), ("batch", 3)])
def test_ledger(model: str, cut: int, bn: str) -> None:
    """Per client and round n E (e A + 8) + e |w_C| + 8 up, n E e (A + N) + e |w_C| down, pairs or not."""
    for bcc in (EAGER, NO_BCC):
        plan = tiny.blueprint(
            "besplit", model=model, cut_layer=cut, local_epochs=2, participation=0.5, bn=bn, bcc=bcc
        )
        federation = tiny.Federation(plan).run(3)
        client = tiny.cut_parts(plan)["client"]
        stays = ("running", "num_batches") if bn == "local" else ()
        up = {k: v for k, v in client.state_dict().items() if not any(word in k for word in stays)}
        elements = client(plan.train.batch(tiny.np.arange(2), torch.float64, "cpu")[0])[0].numel()
        for t in (1, 3):
            rows = sum(tiny.samples(plan, i) for i in federation.algorithm.sample(t).ids)
            assert federation.traffic(t) == {
                ("client-main", "up", "activation"): 8 * elements * rows,
                ("client-main", "up", "label"): 8 * rows,
                ("client-main", "down", "gradient"): 8 * elements * rows,
                ("client-main", "down", "evidence"): 8 * tiny.NUM_CLASSES * rows,
                ("client-fed", "down", "weights"): 2 * tiny.num_bytes(client.state_dict()),
                ("client-fed", "up", "weights"): 2 * tiny.num_bytes(up),
                ("client-fed", "up", "counts"): 2 * 8,
            }


def test_pairs_follow_who_is_there() -> None:
    """A client whose partner has run out of batches finds another at once, or stays alone if pairs are the
    round's."""
    labels = [0] * 6 + [1] * 12 + [0] * 12
    one = tiny.memory("mlp", 30, 1)
    train = tiny.Memory(one.inputs, tiny.np.array(labels))
    found = {}
    for scope in ("step", "round"):
        bcc = PairingConfig(bias_threshold="fixed", zeta=0.0, match_scope=scope)  # type: ignore[arg-type]
        plan = tiny.blueprint("besplit", (6, 12, 12), train=train, batch_size=6, bcc=bcc, ea=NO_EA)
        federation = tiny.Federation(plan).run(1)
        seen = steps_of(federation)
        federation.run(1)
        found[scope] = [(step["pair"].first, step["pair"].second) for step in seen]
    assert found == {"step": [(0, 1), (1, 2)], "round": [(0, 1)]}


def test_records_are_forgotten() -> None:
    """Live for ``ttl`` rounds after a client's last; whoever returns begins anew."""
    federation = tiny.Federation(tiny.blueprint("besplit", participation=0.25, csr=RecordConfig(ttl=2)))
    last: dict[int, int] = {}
    for t in range(1, 9):
        federation.run(1)
        last.update(dict.fromkeys(federation.algorithm.sample(t).ids, t))
        live = {client for client, when in last.items() if t - when <= 2}
        assert set(federation.party("main").records) == live
    assert len(last) > len(live)
