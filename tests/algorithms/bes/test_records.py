"""Client state records: unbiased averages, rows that stay, and what becomes of idle clients."""

import itertools

import pytest
import torch
from torch import Tensor

from rayfl.algorithms.bes.records import ClassSums, Record, global_mix, live

N = 4


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Evidence [b, N] with a graph, two uncertainties [b], labels [b]."""
    drawn = torch.rand(len(labels), N + 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn.requires_grad_()
    return drawn[:, :N], drawn[:, N], drawn[:, N + 1], torch.tensor(labels)


def by_label(values: Tensor, labels: Tensor, label: int) -> Tensor:
    return values[labels == label].mean(0).detach()


def close(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_a_constant_input_is_what_is_read_after_any_number_of_updates() -> None:
    evidence, aleatoric, epistemic, labels = batch([0, 0, 1, 3, 3, 3])
    record = Record.empty(N, 6)
    for t in range(1, 30):
        record.update(ClassSums.of(evidence, aleatoric, epistemic, labels), 0.1, t)
        for label in (0, 1, 3):
            assert close(record.mean_evidence()[label], by_label(evidence, labels, label))
            assert close(record.uncertainties()[0][label], by_label(aleatoric, labels, label))
            assert close(record.uncertainties()[1][label], by_label(epistemic, labels, label))
        assert close(record.proportions(), torch.tensor([2.0, 1, 0, 3]).double() / 6)
    assert record.observed.tolist() == [True, True, False, True]
    assert record.mean_evidence()[2].tolist() == [0] * N
    assert not record.evidence.requires_grad


def test_the_averages_by_hand() -> None:
    """Rate 1/4, means m1 then m2: (3/4 * 1/4 m1 + 1/4 m2) / (7/16) = (3 m1 + 4 m2) / 7."""
    record = Record.empty(N, 6)
    for seed, labels in enumerate(([0, 0, 1], [0, 1, 1, 2])):
        record.update(ClassSums.of(*batch(labels, seed)), 0.25, seed + 1)
    means = [by_label(*batch(labels, seed)[::3], 0) for seed, labels in enumerate(([0, 0, 1], [0, 1, 1, 2]))]
    assert close(record.mean_evidence()[0], (3 * means[0] + 4 * means[1]) / 7)
    mixes = torch.tensor([[8, 4, 0, 0], [3, 6, 3, 0]], dtype=torch.float64) / 12
    assert close(record.proportions(), (3 * mixes[0] + 4 * mixes[1]) / 7)
    assert record.last_round == 2


def test_rate_1_keeps_the_last_batch_and_absent_rows() -> None:
    record = Record.empty(N, 6)
    record.update(ClassSums.of(*batch([0, 1, 1])), 1.0, 1)
    before = record.mean_evidence(), *record.uncertainties()
    record.update(ClassSums.of(*batch([1, 2], seed=5)), 1.0, 2)
    for old, new, values in zip(
        before, (record.mean_evidence(), *record.uncertainties()), batch([1, 2], seed=5)[:3], strict=True
    ):
        assert torch.equal(new[0], old[0])
        assert torch.equal(new[1:3], values.detach())
    assert record.proportions().tolist() == [0, 0.5, 0.5, 0]


def test_sums_of_batches_are_those_of_all_their_samples() -> None:
    """What one update per round goes by."""
    one, other = batch([0, 0, 1], 0), batch([3, 1, 0, 0], 1)
    together = ClassSums.of(*(torch.cat(pair) for pair in zip(one, other, strict=True)))
    added = ClassSums.of(*one) + ClassSums.of(*other)
    for name in ("evidence", "aleatoric", "epistemic", "counts"):
        assert close(getattr(added, name), getattr(together, name))


def test_label_mix_is_unbiased_for_any_number_of_batches() -> None:
    """All 3^3 sequences of three batches of one label each, weighed by their probability."""
    mix = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    expected = torch.zeros(N, dtype=torch.float64)
    for sequence in itertools.product(range(3), repeat=3):
        record = Record.empty(N, 10)
        for t, label in enumerate(sequence):
            record.update(ClassSums.of(*batch([label])), 0.3, t)
        assert record.proportions().sum().item() == pytest.approx(1, abs=1e-12)
        expected += mix[list(sequence)].prod() * record.proportions()
    assert close(expected, mix)


def test_label_mix_keeps_the_noise_that_its_rate_says() -> None:
    """Stationary: the variance of a label's share is that of B (2 - eta) / eta labels, p (1 - p) / n."""
    eta, size, draw = 0.25, 2, torch.Generator().manual_seed(0)
    record = Record.empty(N, 10**6)
    nothing = torch.zeros(size, dtype=torch.float64)
    squares = []
    for t in range(2000):
        labels = torch.randint(N, (size,), generator=draw)
        record.update(ClassSums.of(torch.zeros(size, N).double(), nothing, nothing, labels), eta, t)
        if t > 20:
            squares.append((record.proportions() - 1 / N).square())
    found = torch.stack(squares).mean().item()
    assert found == pytest.approx(1 / 4 * 3 / 4 / record.num_labels(size, eta), rel=0.1)
    assert Record.empty(N, 5).num_labels(size, eta) == 5


def test_an_idle_client_is_forgotten_a_round_after_its_time() -> None:
    records = {client: Record.empty(N, 5) for client in (3, 1)}
    for client, t in ((3, 4), (1, 7)):
        records[client].update(ClassSums.of(*batch([0])), 0.1, t)
    assert list(live(records, 14, 10)) == [1, 3]
    assert list(live(records, 15, 10)) == [1]
    assert list(live(records, 17, 10)) == [1]
    assert list(live(records, 18, 10)) == []
    assert list(live(records, 10**6, None)) == [1, 3]


def test_global_mix_goes_by_size() -> None:
    """30 of class 0 and 10 of class 1."""
    records = {0: Record.empty(N, 30), 1: Record.empty(N, 10)}
    for client, record in records.items():
        record.update(ClassSums.of(*batch([client])), 0.1, 1)
    assert global_mix(records).tolist() == pytest.approx([0.75, 0.25, 0, 0], abs=1e-12)


def test_size_and_state() -> None:
    """N^2 + 4 N + 3 numbers, and all of them come back."""
    record = Record.empty(N, 6)
    record.update(ClassSums.of(*batch([0, 0, 1])), 0.1, 3)
    state = record.state_dict()
    size = sum(value.numel() if isinstance(value, Tensor) else 1 for value in state.values())
    assert size == N**2 + 4 * N + 3
    again = Record(**state)
    for one in (record, again):
        one.update(ClassSums.of(*batch([2, 0], 1)), 0.1, 4)
    for key, value in again.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(getattr(record, key))), key
