"""Client state records (CSR): what the main server remembers of each client's evidence and labels.

Moving averages of the client's own training batches, N^2 + 4 N + 3 numbers each. An average begins at 0 and
is divided by the weight that it has gathered, so that it is unbiased from the first batch on. With a constant
rate it doesn't converge: the label mix keeps the noise of the last 1 / eta batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class ClassSums:
    """What a record is moved by: sums over samples, by label. Those of several batches add up."""

    evidence: Tensor
    """[N, N], row c of the samples with label c."""
    aleatoric: Tensor
    """[N]."""
    epistemic: Tensor
    """[N]."""
    counts: Tensor
    """[N] samples."""

    @classmethod
    def of(cls, evidence: Tensor, aleatoric: Tensor, epistemic: Tensor, labels: Tensor) -> "ClassSums":
        """Of a batch: [b, N] evidence, [b] uncertainties and [b] labels; without graph."""
        # A product, not index_add_: its order of summation is fixed on a GPU as well.
        member = F.one_hot(labels, evidence.shape[1]).double().T
        columns = [evidence, aleatoric[:, None], epistemic[:, None]]
        sums = member @ torch.cat(columns, dim=1).detach().double()
        return cls(sums[:, :-2], sums[:, -2], sums[:, -1], member.sum(1))

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return ClassSums(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass
class Record:
    """Of one client; tensors are float64. The first six are running sums, to be read through the methods."""

    evidence: Tensor
    """[N, N]."""
    aleatoric: Tensor
    """[N]."""
    epistemic: Tensor
    """[N]."""
    weight: Tensor
    """[N] what the averages of each class have gathered."""
    labels: Tensor
    """[N]."""
    labels_weight: float
    """Of ``labels``."""
    num_samples: int
    """n_k, as the client tells it."""
    last_round: int
    """When the client last took part."""

    @classmethod
    def empty(cls, num_classes: int, num_samples: int, device: torch.device | str = "cpu") -> "Record":
        """Of a client that nothing is known of."""
        zeros = torch.zeros(num_classes, dtype=torch.float64, device=device)
        matrix = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=device)
        return cls(matrix, zeros, zeros, zeros, zeros, 0.0, num_samples, 0)

    def update(self, sums: ClassSums, eta: float, t: int) -> None:
        """Move the averages by ``eta`` towards the means of a batch or a round; absent classes stay.

        ``sums`` are on the device of the record and of one sample at least.
        """
        present = sums.counts > 0
        counts = sums.counts.clamp(min=1)
        rate = torch.where(present, eta, 0.0).to(self.weight)
        self.evidence = torch.lerp(self.evidence, sums.evidence / counts[:, None], rate[:, None])
        self.aleatoric = torch.lerp(self.aleatoric, sums.aleatoric / counts, rate)
        self.epistemic = torch.lerp(self.epistemic, sums.epistemic / counts, rate)
        self.weight = torch.lerp(self.weight, torch.ones_like(counts), rate)
        self.labels = torch.lerp(self.labels, sums.counts / sums.counts.sum(), eta)
        self.labels_weight += eta * (1 - self.labels_weight)
        self.last_round = t

    @property
    def observed(self) -> Tensor:
        """[N] bool, the classes that were ever seen."""
        return self.weight > 0

    def mean_evidence(self) -> Tensor:
        """[N, N], row c of the samples with label c; 0 where unseen."""
        return self.evidence / self._gathered()[:, None]

    def uncertainties(self) -> tuple[Tensor, Tensor]:
        """Aleatoric [N] and epistemic [N] by label; 0 where unseen."""
        return self.aleatoric / self._gathered(), self.epistemic / self._gathered()

    def proportions(self) -> Tensor:
        """P_k [N]: an unbiased estimate of the client's label mix, that sums to 1."""
        return self.labels / self.labels_weight

    def num_labels(self, batch_size: int, eta: float) -> float:
        """How many independent labels are worth P_k: what batches at rate ``eta`` hold, or all there are."""
        return min(self.num_samples, batch_size * (2 - eta) / eta)

    def _gathered(self) -> Tensor:
        return torch.where(self.observed, self.weight, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """All of it: ``Record(**state)`` is the same one."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def live(records: Mapping[int, Record], t: int, ttl: int | None) -> dict[int, Record]:
    """Those whose client took part in the last ``ttl`` rounds before ``t``, in ascending id."""
    return {
        client: record
        for client, record in sorted(records.items())
        if ttl is None or t - record.last_round <= ttl
    }


def global_mix(records: Mapping[int, Record]) -> Tensor:
    """P_g [N] = sum_k n_k P_k / sum_k n_k, of at least one record, in ascending id."""
    ordered = [record for _, record in sorted(records.items())]
    sizes = torch.tensor([float(record.num_samples) for record in ordered], dtype=torch.float64)
    mixes = torch.stack([record.proportions().cpu() for record in ordered])
    return sizes @ mixes / sizes.sum()
