"""rayfl's own metrics agree with those of torchmetrics, whose import would cost every trial seconds."""

from typing import Any

import numpy as np
import pytest
import torch

from rayfl import metrics
from rayfl.tasks import TASKS, ClassScore, MaskScore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_classes(seed: int) -> None:
    """Accuracy, top-5, macro-F1, recall, ECE and the confusion matrix of random logits."""
    from torchmetrics.functional import classification as oracle

    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (200,), generator=draw)
    logits = torch.randn(200, 7, dtype=torch.float64, generator=draw)
    logits[torch.arange(200), labels] += 1
    score = TASKS["classification"].score(logits, labels)
    assert isinstance(score, ClassScore)
    confusion = metrics.confusion_matrix(labels.numpy(), score.predictions.numpy(), 7)
    shares = logits.softmax(1)
    error = metrics.expected_calibration_error(
        score.confidences.double().numpy(), score.predictions.numpy() == labels.numpy()
    )

    def close(found: Any, expected: torch.Tensor) -> bool:
        return np.allclose(found, expected.numpy(), rtol=1e-6)

    assert close(confusion, oracle.multiclass_confusion_matrix(logits, labels, 7))
    assert close(metrics.recalls(confusion), oracle.multiclass_recall(logits, labels, 7, average=None))
    assert close(metrics.macro_f1(confusion), oracle.multiclass_f1_score(logits, labels, 7, average="macro"))
    assert close(error, oracle.multiclass_calibration_error(shares, labels, 7, n_bins=15))
    top = oracle.multiclass_accuracy(logits, labels, 7, average="micro", top_k=5)
    assert close(score.in_top5.double().mean().item(), top)


def test_masks() -> None:
    """Dice and IoU by image, without the background."""
    from torchmetrics.functional import segmentation as oracle

    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=draw)
    labels = torch.randint(3, (5, 8, 8), generator=draw)
    score = TASKS["segmentation"].score(logits, labels)
    assert isinstance(score, MaskScore)
    found = logits.argmax(1)
    options: dict[str, Any] = {"include_background": False, "input_format": "index"}
    dice = oracle.dice_score(found, labels, 3, average="macro", **options)
    assert np.allclose(metrics.dice_by_image(score), dice.numpy(), rtol=1e-6)
    iou = oracle.mean_iou(found, labels, 3, per_class=False, **options)
    assert np.allclose(metrics.iou_by_image(score), iou.numpy(), rtol=1e-6)
