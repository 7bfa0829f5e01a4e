"""Class prototypes (FedSGA): how they move, and what is lost to them."""

import math

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.sga.prototypes import PrototypeMemory, Prototypes
from rayfl.messages import weigh

Y, D = 4, 3
LIKE = torch.zeros((), dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def known(seen: tuple[int, ...] = (0, 1, 3)) -> Prototypes:
    """Random unit vectors for the classes seen, zeros for the others."""
    mask = torch.tensor([y in seen for y in range(Y)])
    directions = torch.nn.functional.normalize(draw(1, Y, D), dim=1) * mask[:, None]
    return Prototypes(directions, mask)


def cosine(one: Tensor, other: Tensor) -> float:
    return (one @ other / (one.norm() * other.norm())).item()


def memory(mu: float = 0.9) -> PrototypeMemory:
    return PrototypeMemory(Y, D, mu, LIKE)


@pytest.mark.parametrize("mu", [0.0, 0.6, 1.0])
def test_step_by_step(mu: float) -> None:
    """Rounds of several batches with classes that come and go, against loops over samples."""
    ours = memory(mu)
    expected: dict[int, Tensor] = {}
    for t, batches in enumerate([[[0, 0, 1]], [[1, 1, 0], [3, 1]], [[3]], [], [[0, 3, 3, 3]]]):
        of_class: dict[int, list[Tensor]] = {}
        for place, labels in enumerate(batches):
            features = draw(10 * t + place, len(labels), D)
            ours.add(features, torch.tensor(labels))
            for z, y in zip(features, labels, strict=True):
                of_class.setdefault(y, []).append(z)
        before = ours.current.directions.clone()
        ours.move()
        for y, found in of_class.items():
            mean = torch.stack(found).mean(0)
            moved = mu * expected[y] + (1 - mu) * mean if y in expected else mean
            expected[y] = moved / moved.norm()
        for y in range(Y):
            if y in expected:
                assert torch.allclose(ours.current.directions[y], expected[y], rtol=0, atol=1e-12)
                assert ours.current.directions[y].norm().item() == pytest.approx(1, abs=1e-12)
            if y not in of_class:
                assert torch.equal(ours.current.directions[y], before[y])
        assert ours.current.seen.tolist() == [y in expected for y in range(Y)]
    assert not ours.current.directions[2].any()


def test_first_sighting_is_the_normalised_mean() -> None:
    """Whatever the momentum: there is nothing to mix it with."""
    ours, features = memory(), draw(2, 5, D)
    ours.add(features, torch.full((5,), 2))
    ours.move()
    mean = features.mean(0)
    assert torch.allclose(ours.current.directions[2], mean / mean.norm(), rtol=0, atol=1e-12)


def test_constant_features_are_approached() -> None:
    """From any start, C goes to Z / |Z|, and the angle never grows."""
    ours, start, z = memory(), draw(3, 1, D), draw(4, 1, D)
    ours.add(start, torch.tensor([1]))
    ours.move()
    cosines = []
    for _ in range(60):
        ours.add(z.expand(2, D), torch.tensor([1, 1]))
        ours.move()
        cosines.append(cosine(ours.current.directions[1], z[0]))
    assert cosines == sorted(cosines)
    assert torch.allclose(ours.current.directions[1], z[0] / z[0].norm(), rtol=0, atol=1e-3)


def test_moving_takes_effect_at_once_and_changes_no_message() -> None:
    """What was sent before stays as it was; what was counted is forgotten; features keep no graph."""
    ours, features = memory(), draw(5, 2, D).requires_grad_()
    sent = ours.current
    ours.add(features, torch.tensor([0, 1]))
    assert not ours.current.seen.any()
    ours.move()
    assert not sent.directions.any()
    assert ours.current.seen.tolist() == [True, True, False, False]
    assert not ours.current.directions.requires_grad
    first = ours.current
    ours.move()
    assert torch.equal(ours.current.directions, first.directions)


def test_stored_and_taken_up() -> None:
    """A memory that goes on from a stored state moves as the one that never stopped."""
    one, two = memory(), memory()
    one.add(draw(6, 3, D), torch.tensor([0, 0, 2]))
    one.move()
    two.add(draw(9, 1, D), torch.tensor([1]))
    two.load_state_dict(one.state_dict())
    for each in (one, two):
        each.add(draw(7, 2, D), torch.tensor([2, 3]))
        each.move()
    assert torch.equal(one.current.directions, two.current.directions)
    assert torch.equal(one.current.seen, two.current.seen)


def test_alignment() -> None:
    """The mean cosine with the own class over samples of seen classes; 0 without any."""
    prototypes, features = known(), draw(8, 4, D)
    labels = torch.tensor([0, 2, 3, 3])
    expected = sum(cosine(features[b], prototypes.directions[y]) for b, y in ((0, 0), (2, 3), (3, 3))) / 3
    assert prototypes.alignment(features, labels).item() == pytest.approx(expected, abs=1e-12)
    assert prototypes.alignment(features, torch.full((4,), 2)).item() == 0
    assert prototypes.alignment(features[:0], labels[:0]).item() == 0
    own = prototypes.directions[labels.new_tensor([0, 1, 3])]
    assert prototypes.alignment(7 * own, torch.tensor([0, 1, 3])).item() == pytest.approx(1)


def test_contrastive_loss_in_loops() -> None:
    """-log softmax over seen classes of cos / tau, a mean over the batch; unseen classes add nothing."""
    prototypes, features, tau = known(), draw(9, 4, D), 0.5
    labels = torch.tensor([0, 2, 3, 1])
    total = 0.0
    for b in (0, 2, 3):
        exps = {y: math.exp(cosine(features[b], prototypes.directions[y]) / tau) for y in (0, 1, 3)}
        total -= math.log(exps[int(labels[b])] / sum(exps.values()))
    assert prototypes.contrastive_loss(features, labels, tau).item() == pytest.approx(total / 4, abs=1e-12)


@pytest.mark.parametrize("seen", [(0,), (0, 3), (0, 1, 2, 3)])
def test_equal_prototypes_cost_the_log_of_their_number(seen: tuple[int, ...]) -> None:
    mask = torch.tensor([y in seen for y in range(Y)])
    same = torch.nn.functional.normalize(draw(1, 1, D), dim=1).expand(Y, D) * mask[:, None]
    found = Prototypes(same, mask).contrastive_loss(draw(2, 6, D), torch.zeros(6, dtype=torch.int64), 0.5)
    assert found.item() == pytest.approx(math.log(len(seen)), abs=1e-12)


def test_cosine_loss() -> None:
    """1 - cos with the own class, a mean over the batch; unseen classes add nothing."""
    prototypes, features = known(), draw(9, 4, D)
    labels = torch.tensor([0, 2, 3, 1])
    total = sum(1 - cosine(features[b], prototypes.directions[labels[b]]) for b in (0, 2, 3))
    assert prototypes.cosine_loss(features, labels).item() == pytest.approx(total / 4, abs=1e-12)


def losses(prototypes: Prototypes, features: Tensor, labels: Tensor) -> list[Tensor]:
    return [prototypes.contrastive_loss(features, labels, 0.5), prototypes.cosine_loss(features, labels)]


@pytest.mark.parametrize("which", [0, 1])
def test_the_length_of_features_has_no_say(which: int) -> None:
    """Nor does the loss pull along them: the gradient is orthogonal."""
    prototypes, labels = known(), torch.tensor([0, 1, 3, 3])
    features = draw(3, 4, D).requires_grad_()
    scales = torch.tensor([[0.01], [3.0], [1.0], [500.0]], dtype=torch.float64)
    found = losses(prototypes, features, labels)[which]
    assert losses(prototypes, features * scales, labels)[which].item() == pytest.approx(
        found.item(), abs=1e-12
    )
    gradient = torch.autograd.grad(found, features)[0]
    assert (gradient * features).sum(1).abs().max() < 1e-12
    assert gradient.abs().min() > 0


@pytest.mark.parametrize("which", [0, 1])
def test_samples_of_unseen_classes_teach_nothing(which: int) -> None:
    features, labels = draw(3, 4, D).requires_grad_(), torch.tensor([2, 0, 2, 1])
    gradient = torch.autograd.grad(losses(known(), features, labels)[which], features)[0]
    assert gradient.abs().sum(1).bool().tolist() == [False, True, False, True]


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_seen(which: int) -> None:
    """A loss of 0 with a finite gradient, also for features of length 0."""
    for features in (draw(3, 2, D), torch.zeros(2, D, dtype=torch.float64)):
        features.requires_grad_()
        found = losses(known(seen=()), features, torch.tensor([0, 1]))[which]
        assert found.item() == 0
        assert not torch.autograd.grad(found, features)[0].any()


@pytest.mark.parametrize("which", [0, 1])
def test_dead_features(which: int) -> None:
    """All zero, of a class that was seen: finite."""
    features = torch.zeros(2, D, dtype=torch.float64, requires_grad=True)
    found = losses(known(), features, torch.tensor([0, 1]))[which]
    assert found.isfinite()
    assert torch.autograd.grad(found, features)[0].isfinite().all()


def test_kind_of_message() -> None:
    """Y vectors and a flag each, entered as prototypes."""
    assert dict(weigh(known())) == {"prototype": Y * D * 8 + Y}
