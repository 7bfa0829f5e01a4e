"""Prototypes for masks as H-SFP's authors' code has them: one label per image.

This breaks the method's premise. Clients and edges learn from two classes of images, with moments as for
classification. But those tell the cloud nothing of masks, so each round every participant's features of all
its images go up with their masks, through the edge part as it is: activations of single samples cross both
links, and the ledger has them.
"""

from torch import Tensor

from rayfl.algorithms.sfp.classes import ClassPrototypes
from rayfl.algorithms.sfp.objective import Objective
from rayfl.host import Batch
from rayfl.tasks import Reduction, Segmentation
from rayfl.training import Rows

LESION_SHARE = 0.1
"""An image whose lesion takes more of its area is of class 1."""
FOCUS = 2.0
"""The exponent of Lin et al. 2017, https://arxiv.org/abs/1708.02002; that of the authors is not known."""


def image_labels(masks: Tensor) -> Tensor:
    """[n] int64 of masks [n, H, W]: whether pixels of 1 take more than ``LESION_SHARE``."""
    return ((masks == 1).double().mean((1, 2)) > LESION_SHARE).long()


def decoder_loss(logits: Tensor, masks: Tensor, reduction: Reduction) -> Tensor:
    """Soft Dice plus the focal loss, of logits [b, K, H, W] and masks [b, H, W]."""
    return Segmentation().loss(logits, masks, reduction, FOCUS)


class ImageLabelPrototypes(ClassPrototypes):
    """A Gaussian of the features of images with a large lesion, and one of all others."""

    def objective(self, lr: float, t: int, index: int) -> Objective:
        """A client's batches come with masks, what an edge draws with labels."""
        kind = MaskedObjective if self.part == "client" else Objective
        return kind(self.host, lr, self.where, t, index)

    def labels(self, batch: Batch, rows: Rows) -> Tensor:
        """As the masks have it."""
        return image_labels(batch.labels).cpu()


class MaskedObjective(Objective):
    """The objective of images whose masks tell their labels."""

    def loss(self, features: Tensor, masks: Tensor) -> Tensor:
        """Of features [b, *S] and masks [b, H, W]."""
        return self._host.loss(features, masks, self._of_images)

    def _of_images(self, features: Tensor, masks: Tensor) -> Tensor:
        return super().loss(features, image_labels(masks))
