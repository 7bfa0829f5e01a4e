"""What the main server notes of a client in a round, for records and for the report."""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from rayfl.algorithms.bes.mixing import Floats
from rayfl.algorithms.bes.records import ClassSums


@dataclass
class Tally:
    """Sums over a client's steps."""

    num_batches: int = 0
    unsure: Tensor | float = 0.0
    """[3] vacuity, aleatoric and epistemic uncertainty, each the sum of its means over batches."""
    seen: ClassSums | None = None
    """The client's own samples."""
    trained: Tensor | float = 0.0
    """[N] how much of each class the client's server-side model was trained on."""
    partners: Counter[int] = field(default_factory=Counter)
    """Steps by partner."""

    def note(self, sums: ClassSums, unsure: Tensor) -> None:
        """Take in a batch of the client's own."""
        self.num_batches += 1
        self.unsure = self.unsure + unsure
        self.seen = sums if self.seen is None else self.seen + sums

    def train(self, labels: Tensor, counts: Tensor, num_classes: int) -> None:
        """Take in what the model was trained on: labels [b], and what each counts [b]."""
        self.trained = self.trained + counts.double() @ F.one_hot(labels, num_classes).double()

    def mix(self) -> Floats:
        """The label mix [N] of all that it was trained on."""
        assert isinstance(self.trained, Tensor)
        mix: Floats = (self.trained / self.trained.sum()).cpu().numpy()
        return mix

    def partner(self) -> int | None:
        """With whom most steps were made, the lowest of equals; None after steps alone."""
        return min(self.partners, key=lambda other: (-self.partners[other], other), default=None)

    def means(self) -> list[float]:
        """Vacuity, aleatoric and epistemic uncertainty."""
        assert isinstance(self.unsure, Tensor)
        means: list[float] = (self.unsure / self.num_batches).tolist()
        return means
