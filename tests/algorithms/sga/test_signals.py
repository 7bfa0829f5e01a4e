"""What clients tell of themselves (FedSGA, eqs. 3 to 5), and how it is made comparable."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfl.algorithms.sga.signals import LARGEST, Normaliser, Observation, ProjectingSignal, moved, pooled
from rayfl.messages import weigh
from rayfl.seeding import generator

ROUNDS: list[dict[int, tuple[float, float | None, float | None]]] = [
    {0: (0.1, None, None), 1: (0.2, None, None)},
    {1: (-0.3, 0.4, 0.1), 0: (0.5, 0.8, 0.5), 2: (0.9, None, None)},
    {2: (0.2, 1.5, 0.25), 1: (0.4, 0.1, 0.2)},
]
"""Observations by client; client 2 joins late."""
NAMES = ("relative", "raw", "running_z", "cohort")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_pooled_maps_and_vectors() -> None:
    """[b, C, H, W] to means over locations, [b, C] as it is, whatever is asked of tokens."""
    maps, vectors = draw(2, 3, 4, 5), draw(2, 3)
    for how in ("cls", "mean", "mean_all"):
        assert torch.allclose(pooled(maps, how, 2), maps.sum((2, 3)) / 20, rtol=0, atol=1e-12)
        assert torch.equal(pooled(vectors, how, 2), vectors)


@pytest.mark.parametrize(
    ("how", "kept"), [("cls", [0]), ("mean", [0, 3, 4, 5]), ("mean_all", [0, 1, 2, 3, 4, 5])]
)
def test_pooled_tokens(how: str, kept: list[int]) -> None:
    """Class token, 2 prompts, 3 patches: the class token, the mean without prompts, the mean of all."""
    tokens = draw(2, 6, 3)
    assert torch.allclose(
        pooled(tokens, how, 2), sum(tokens[:, i] for i in kept) / len(kept), rtol=0, atol=1e-12
    )  # type: ignore[arg-type]


def test_pooled_tokens_without_prompts() -> None:
    tokens = draw(2, 4, 3)
    assert torch.equal(pooled(tokens, "mean", 0), tokens.mean(1))


def make(seed: int = 0, size: int = 5, d_z: int = 4, pool: str = "mean") -> ProjectingSignal:
    return ProjectingSignal(size, d_z, pool, 2, 3.5, generator(seed, "signal")).double()


def test_signal_lets_features_pass() -> None:
    """It changes nothing on the way, and what it pools gives no gradient to what is below."""
    signal, tokens = make(), draw(2, 6, 5).requires_grad_()
    assert signal(tokens) is tokens
    found = signal.pooled(tokens)
    assert not found.requires_grad
    assert torch.allclose(found, tokens[:, [0, 3, 4, 5]].mean(1), rtol=0, atol=1e-12)
    assert torch.equal(make(pool="cls").pooled(tokens), tokens[:, 0])


def test_projection() -> None:
    """LayerNorm, then one linear layer; all of it learns at the factor given."""
    signal, h = make(), draw(3, 5)
    with torch.no_grad():
        signal.fc.bias.add_(0.5)
    centred = h - h.mean(1, keepdim=True)
    normed = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(signal.project(h), normed @ signal.fc.weight.T + 0.5, rtol=0, atol=1e-12)
    assert [parameter.lr_factor for parameter in signal.parameters()] == [3.5] * 4  # type: ignore[attr-defined]


def test_initial_projection() -> None:
    """Normal weights of 1 / sqrt(fan_in), no bias, a function of the generator alone."""
    one, two, other = (make(seed, size=200, d_z=100) for seed in (0, 0, 1))
    assert one.fc.weight.std().item() == pytest.approx(200**-0.5, rel=0.03)
    assert not one.fc.bias.any()
    assert torch.equal(one.fc.weight, two.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_moved() -> None:
    """(0, 3) to (4, 3) is 4, relative to a length of 3, or at most 5; nothing is known without an old one."""
    old, new = torch.tensor([0.0, 3.0], dtype=torch.float64), torch.tensor([4.0, 3.0], dtype=torch.float64)
    assert moved(new, None, True) is None
    for relative, expected in ((False, 4.0), (True, 4 / 3)):
        found = moved(new, old, relative)
        assert found is not None
        assert found.item() == pytest.approx(expected)
    for tiny in (old / 1e6, torch.zeros_like(old)):
        largest, distance = moved(new, tiny, True), moved(new, tiny, False)
        assert largest is not None
        assert distance is not None
        assert largest.item() == LARGEST == 5
        assert distance.item() == pytest.approx(5, abs=1e-5)
    still = moved(torch.zeros(2), torch.zeros(2), True)
    assert still is not None
    assert still.item() == 0


def test_kind_of_message() -> None:
    """Three scalars of control; those that nothing is known of don't travel."""
    one = torch.zeros((), dtype=torch.float64)
    assert dict(weigh(Observation(one, one, one))) == {"control": 24}
    assert dict(weigh(Observation(one, None, None))) == {"control": 8}


@pytest.mark.parametrize("how", NAMES)
def test_first_time(how: str) -> None:
    """With nothing to compare with, both drifts are 1, the most unstable; order of clients is kept."""
    normaliser = Normaliser(how)
    assert normaliser(ROUNDS[0]) == {0: (0.1, 1.0, 1.0), 1: (0.2, 1.0, 1.0)}
    later = normaliser(ROUNDS[1])
    assert list(later) == [1, 0, 2]
    assert later[2][1:] == (1.0, 1.0)


@pytest.mark.parametrize("how", ["relative", "raw"])
def test_as_they_are(how: str) -> None:
    """Relative drifts are made so by the client, which alone knows by what."""
    normaliser = Normaliser(how)
    for observed in ROUNDS:
        for client, values in normaliser(observed).items():
            assert values == tuple(1.0 if value is None else value for value in observed[client])


def test_cohort() -> None:
    """Drifts by the mean of those present that have any, alignment less its mean over all participants."""
    found = Normaliser("cohort")(ROUNDS[1])
    mean = (0.5 - 0.3 + 0.9) / 3
    assert found[0] == pytest.approx((0.5 - mean, 0.8 / 0.6, 0.5 / 0.3))
    assert found[1] == pytest.approx((-0.3 - mean, 0.4 / 0.6, 0.1 / 0.3))
    assert found[2] == pytest.approx((0.9 - mean, 1.0, 1.0))


def test_cohort_that_stands_still() -> None:
    """Without prompts all q are 0, and stay so."""
    found = Normaliser("cohort")({0: (0.5, 0.0, 0.0), 1: (0.1, 0.0, 0.0)})
    assert found[0] == pytest.approx((0.2, 0.0, 0.0))
    assert found[1] == pytest.approx((-0.2, 0.0, 0.0))


def test_running_z() -> None:
    """Standardised over all observations with drifts so far, this round's included: against numpy."""
    normaliser, seen = Normaliser("running_z"), []
    for observed in ROUNDS:
        found = normaliser(observed)
        seen += [values for _, values in sorted(observed.items()) if values[1] is not None]
        if not seen:
            continue
        table = np.array(seen, dtype=np.float64)
        for client, values in found.items():
            raw = np.array([np.nan if value is None else value for value in observed[client]])
            expected = (raw - table.mean(0)) / table.std(0)
            expected[np.isnan(expected)] = 1.0
            assert values == pytest.approx(tuple(expected), abs=1e-12)


def test_running_z_without_spread() -> None:
    """A lone observation is taken as it is; constant ones become 0."""
    normaliser = Normaliser("running_z")
    assert normaliser({0: (0.5, 0.25, 0.0)}) == {0: (0.5, 0.25, 0.0)}
    assert normaliser({0: (0.5, 0.25, 0.0)}) == {0: (0.0, 0.0, 0.0)}


@pytest.mark.parametrize("how", NAMES)
def test_goes_on_where_it_was_stored(how: str) -> None:
    """The stored state is plain, and empty but for running moments."""
    whole, first, second = Normaliser(how), Normaliser(how), Normaliser(how)
    for observed in ROUNDS:
        whole(observed)
    first(ROUNDS[0])
    assert first.state_dict() == {}
    first(ROUNDS[1])
    state = first.state_dict()
    assert bool(state) == (how == "running_z")
    first(ROUNDS[2])
    second.load_state_dict(state)
    assert second(ROUNDS[2]) == Normaliser(how)(ROUNDS[2]) or how == "running_z"
    assert second.state_dict() == first.state_dict() == whole.state_dict()


@pytest.mark.parametrize("how", NAMES)
def test_order_of_arrival_has_no_say(how: str) -> None:
    """Whoever answers first: the same numbers to the last bit."""
    expected = None
    for order in itertools.permutations([3, 0, 7]):
        normaliser = Normaliser(how)
        raw = {3: (0.1, math.pi, 0.3), 0: (0.7, 1 / 3, 0.1), 7: (0.2, math.e, 0.2)}
        found = normaliser({client: raw[client] for client in order})
        expected = expected or found
        assert found == expected
