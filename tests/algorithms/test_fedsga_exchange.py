"""FedSGA: averages over depths, what probes ask, and all that crosses a link."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from test_fedsga import EQUAL, at_depths, plan_of
from tiny import difference, identical
from torch import Tensor

from rayfl.algorithms.sga.sides import Above
from rayfl.messages import PooledUpdate
from rayfl.models import is_norm_buffer
from rayfl.shell import Shell

ALWAYS: dict[str, Any] = {"calib_every": 1}


def copies(federation: tiny.Federation) -> list[tuple[int, dict[int, Any], Any]]:
    """Notes what each average is made of, as number, clients' updates and server's."""
    fed, seen = federation.party("fed"), []
    average = fed.average

    def noted(number: int, updates: Mapping[int, Any], copy: Any) -> None:
        seen.append((number, dict(updates), copy))
        average(number, updates, copy)

    fed.average = noted
    return seen


@pytest.mark.parametrize("depths", [(1, 3, 2, 3), (2, 2, 2, 2), (1, 1, 1, 1), (3, 3, 3, 3)])
def test_every_block_weighs_all_samples(depths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of a segment is over clients that reach it and, for the rest, the server's copy: sum n_i."""
    at_depths(monkeypatch, depths)
    plan = plan_of(tiny.SIZES, "batch")
    federation = tiny.Federation(plan)
    seen = copies(federation)
    federation.run(1)
    after, n = federation.weights(), plan.facts.num_samples
    for number, updates, copy in seen:
        reached = [i for i in range(4) if depths[i] >= number]
        masses = [each.mass for each in updates.values()]
        assert sum(masses) == sum(n[i] for i in reached)
        assert copy.mass == sum(n) - sum(n[i] for i in reached)
        states = [each.weights for each in updates.values() if each.mass]
        if any(isinstance(each, PooledUpdate) for each in updates.values()):
            states = [
                {
                    name: total / each.mass if total.is_floating_point() else total
                    for name, total in each.sums.items()
                }
                if isinstance(each, PooledUpdate)
                else each.weights
                for each in updates.values()
                if each.mass
            ]
        mass = [m for m in masses if m]
        both = [*states, *([copy.weights] if copy.mass else [])]
        if both and both[0]:
            expected = tiny.average(both, [*mass, *([copy.mass] if copy.mass else [])])
            assert difference({name: after[name] for name in expected}, expected) < 1e-12
        if not reached and copy.weights:
            assert identical({name: after[name] for name in copy.weights}, copy.weights)


def test_equal_depths_are_a_plain_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over whole prefixes by sample count, as SplitFed takes it."""
    at_depths(monkeypatch, (2, 2, 2, 2))
    plan = plan_of(tiny.SIZES, "batch")
    federation = tiny.Federation(plan)
    states: dict[int, tiny.State] = {}
    for i in range(4):
        client = federation.party("client", i)

        def finish(client: Any = client, i: int = i, finish: Any = client.finish) -> None:
            states[i] = tiny.state_of(client.model[: client.below.part.ends[1]])
            finish()

        client.finish = finish
    after = federation.run(1).weights()
    expected = tiny.average([states[i] for i in range(4)], tiny.SIZES)
    expected = {name: value for name, value in expected.items() if not name.startswith("prompts")}
    assert {"block0.0.weight", "block1.1.running_mean", "signal.fc.weight"} <= expected.keys()
    assert difference({name: after[name] for name in expected}, expected) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("model", tiny.CUTS)
def test_one_step_does_not_depend_on_who_cuts_where(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal sizes, one step, e(p) = 0: the same averaged model; ``server_reduce: mean`` makes it depend."""
    found: dict[str, list[tiny.State]] = {"block_mean": [], "mean": []}
    for reduce, states in found.items():
        for depths in ((1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 2, 2), (2, 2, 2, 2)):
            at_depths(monkeypatch, depths)
            plan = plan_of((4, 4, 4, 4), model, server_reduce=reduce, candidates=(1, 2), e_init_std=0.0)
            state = tiny.run(plan, 1)
            # Each depth's own embedding learns from those who are there, and statistics of a block move with
            # every client that passes through it.
            kept = [name for name in state if name != "harmoniser.embedding" and not is_norm_buffer(name)]
            states.append({name: state[name] for name in kept})
    for state in found["block_mean"][1:]:
        assert difference(state, found["block_mean"][0]) < 1e-12
    assert max(difference(state, found["mean"][0]) for state in found["mean"][1:]) > 1e-5


def ratios(plan: tiny.Blueprint, rounds: int = 3) -> list[float]:
    """Loss ratios of all probes."""
    federation, found = tiny.Federation(plan), []
    for _ in range(rounds):
        found += [one.ratio for one in federation.run(1).party("fed").verdicts.values()]
    return found


def test_a_probe_at_the_start_compares_a_function_with_itself() -> None:
    """Blocks are averaged and the server runs the rest: a ratio of exactly 1 while embeddings are 0."""
    found = ratios(plan_of(tiny.SIZES, "batch", probe="start", e_init_std=0.0, **ALWAYS), rounds=1)
    assert found == [1.0] * 3  # the client of three samples is not asked


def test_a_probe_at_the_start_with_embeddings() -> None:
    """They make the only difference, of less than a hundredth; at the end there is a larger one."""
    start = ratios(plan_of(tiny.SIZES, "batch", probe="start", **ALWAYS))
    end = ratios(plan_of(tiny.SIZES, "batch", probe="end", lr=0.5, **ALWAYS))
    assert 0 < max(abs(ratio - 1) for ratio in start) < 0.01 < max(abs(ratio - 1) for ratio in end)


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["end", "linear", "start"])
@pytest.mark.parametrize("options", [{"p_ref": 1}, {"beta": 1e9}], ids=str)
def test_labels_that_are_always_one(options: dict[str, Any], probe: str) -> None:
    """The shallowest cut compared with itself, without tolerance; any loss, with endless tolerance."""
    federation = tiny.Federation(plan_of(EQUAL, probe=probe, **{"beta": 0.0, **options}, **ALWAYS))
    for _ in range(2):
        verdicts = federation.run(1).party("fed").verdicts
        assert [one.sufficient for one in verdicts.values()] == [True] * 4


def test_what_a_probe_at_the_end_measures() -> None:
    """Rows that the round left out, the client's own blocks as trained, the server's as trained."""
    plan = plan_of((9, 6), "batch", p_ref=3, lr=0.5, beta=0.1, **ALWAYS)
    federation = tiny.Federation(plan)
    main, states, answers = federation.party("main"), {}, {}
    ask = main.losses

    def losses(probes: Mapping[int, Any]) -> dict[int, Any]:
        states["main"] = tiny.state_of(main.learner.model)
        for i in probes:
            states[i] = tiny.state_of(federation.party("client", i).model)
        answers.update(ask(probes))
        assert identical(tiny.state_of(main.learner.model), states["main"])
        return dict(answers)

    losses.per_client = True  # type: ignore[attr-defined]
    main.losses = losses
    federation.run(1)
    for i in range(2):
        client = federation.party("client", i)
        rows = client.probe_rows.held_out(1)
        assert len(rows) == (9, 6)[i] // 4
        assert set(rows) | set(client.training_rows(1)) == set(client.rows)
        assert not set(rows) & set(client.training_rows(1))
        assert list(client.training_rows(2)) != list(client.training_rows(1))
        inputs, labels = plan.train.batch(rows, torch.float64, "cpu")
        found = []
        for number in (1, 3):
            whole: Any = tiny.initial(plan).eval()
            whole.load_state_dict({**states["main"], **states[i]})
            above: Any = tiny.initial(plan).eval()
            above.load_state_dict({**tiny.state_of(whole), **states["main"]})
            end = whole.ends[number - 1]
            features = above[end:-1](whole[:end](inputs))
            found.append(tiny.loss(whole[-1].classifier(above[-1].embed(features, number)), labels).item())
        assert (answers[i].shallow, answers[i].reference) == pytest.approx(tuple(found), abs=1e-12)
        verdict = federation.party("fed").verdicts[i]
        assert verdict.sufficient is (found[0] <= 1.1 * found[1])
        assert verdict.ratio == pytest.approx(found[0] / found[1])


@pytest.mark.parametrize("candidates", [(1, 2), (1, 2, 3)])
@pytest.mark.parametrize("bn", ["per_client", "merged"])
def test_a_calibration_is_two_passes_a_client(
    candidates: tuple[int, ...], bn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many candidates there are."""
    passes: Counter[bool] = Counter()
    embed = Above.embed

    def counted(above: Above, *arguments: Any) -> Tensor:
        passes[torch.is_grad_enabled()] += 1
        return embed(above, *arguments)

    monkeypatch.setattr(Above, "embed", counted)
    plan = plan_of(EQUAL, candidates=candidates, server_bn=bn, calib_every=2)
    tiny.Federation(plan).run(5)
    assert passes[False] == 2 * 2 * 4
    assert passes[True] == 5 * 2 * (4 if bn == "per_client" else 1) or bn == "merged"


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in a message, with what leads to them."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item, name)
    elif is_dataclass(value):
        for part in fields(value):
            yield from tensors(getattr(value, part.name), f"{name}/{part.name}")


@pytest.mark.parametrize("options", [{}, {"probe": "start"}, {"client_aggregation": "none"}], ids=str)
def test_prompts_never_leave(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In no message of a client, by name, by shape or by value."""
    sent: list[tuple[str, str, Tensor]] = []
    deliver = Shell._hand_over

    def noted(shell: Shell, request: Any, index: int, item: Any, values: Any) -> Any:
        given = deliver(shell, request, index, item, values)
        if getattr(item, "sender", None) == "client" and request.role != "client":
            sent.extend((request.phase, name, tensor) for name, tensor in tensors(given))
        return given

    monkeypatch.setattr(Shell, "_hand_over", noted)
    federation = tiny.Federation(plan_of(tiny.SIZES, "batch", num_prompts=5, **ALWAYS, **options)).run(2)
    assert {phase for phase, _, _ in sent} == {"train", "calibration"}
    prompts = [federation.party("client", i).private["prompts.tokens"] for i in range(4)]
    assert prompts[0].shape == (5, 4)
    assert all(difference({"": prompts[0]}, {"": other}) > 0 for other in prompts[1:])
    everything = {number for each in prompts for number in each.flatten().tolist()}
    for _, name, tensor in sent:
        assert "prompt" not in name or name.endswith("/prompt_drift")
        assert tensor.shape[-2:] != (5, 4)
        assert not everything & set(tensor.flatten().tolist())


def test_prompts_follow_their_own_data() -> None:
    """In a first joint step, other clients' data move everything but one's prompts."""
    plans = [plan_of((4, 4), local_steps=1) for _ in range(2)]
    plans[1].train.inputs[4:] += 1.0  # type: ignore[attr-defined]
    runs = [tiny.Federation(plan).run(1) for plan in plans]
    assert difference(runs[0].weights(), runs[1].weights()) > 1e-6
    own = [[run.party("client", i).private for run in runs] for i in range(2)]
    assert identical(*own[0])
    assert difference(*own[1]) > 0


@pytest.mark.parametrize("calib", [False, True])
def test_ledger(calib: bool) -> None:
    """A round in closed form. A calibration adds two interfaces, labels and four scalars per client asked."""
    plan = plan_of(tiny.SIZES, calib_every=2 if calib else 50, p_ref=2)
    federation = tiny.Federation(plan).run(2)
    depths, part = federation.party("fed").depths, tiny.cut_parts(plan)["client"]
    elements, features = [], plan.train.batch(np.arange(2), torch.float64, "cpu")[0]
    for start, end in zip((0, *part.ends), part.ends, strict=False):  # type: ignore[arg-type, misc]
        features = part[start:end](features)
        elements.append(features[0].numel())
    shared = [
        tiny.num_bytes({n: v for n, v in part[start:end].state_dict().items() if not n.startswith("prompts")})
        for start, end in zip((0, *part.ends), part.ends, strict=False)  # type: ignore[arg-type, misc]
    ]
    # Two steps of at most 4 rows, of 7, 3, 10 and 5; or of 6, 3, 8 and 4 while a fourth is held out.
    rows = (4 + 2, 3 + 3, 4 + 4, 4 + 4) if calib else (4 + 3, 3 + 3, 4 + 4, 4 + 1)
    held = (1, 0, 2, 1) if calib else (0, 0, 0, 0)
    asked = [i for i in range(4) if held[i]]
    crossed = 8 * sum(rows[i] * elements[depths[i] - 1] for i in range(4))
    probes = 8 * sum(held[i] * (elements[0] + elements[1]) for i in asked)
    expected = {
        ("client-main", "up", "activation"): crossed + probes,
        ("client-main", "up", "label"): 8 * sum(rows) + 8 * sum(held),
        ("client-main", "up", "control"): 8 * 4 * 2,
        ("client-main", "down", "gradient"): crossed,
        ("client-main", "down", "prototype"): 4 * tiny.NUM_CLASSES * (8 * 8 + 1),
        ("client-main", "down", "control"): 16 * len(asked),
        ("client-fed", "up", "control"): 4 * 24 + 16 * len(asked),
        ("client-fed", "down", "control"): 4 * 16,
        ("client-fed", "down", "weights"): 4 * sum(shared),
        ("client-fed", "up", "weights"): sum(sum(shared[: depths[i]]) for i in range(4)),
        ("client-fed", "up", "counts"): 4 * 3 * 8,
    }
    assert federation.traffic(2) == {line: size for line, size in expected.items() if size}
    book = federation.fleet.ledger
    assert book.total(phase="calibration") == probes + 8 * sum(held) + 32 * len(asked)


def test_fixed_depths_ask_nothing() -> None:
    """Static and random strategies, and the ablated estimator, cause no calibration traffic."""
    for options in (
        {"strategy": "static"},
        {"strategy": "random"},
        {"ablate": "suff_est"},
        {"ablate": "all"},
    ):
        federation = tiny.Federation(plan_of(EQUAL, **ALWAYS, **options)).run(2)
        assert federation.fleet.ledger.total(phase="calibration") == 0
