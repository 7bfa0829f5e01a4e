"""Numbers made of scores, and of a run's history.

Most are ratios of integer counts, taken in float64 where the scores of all slices have come together.
"""

from rayfl.metrics.classification import (
    balanced_accuracy,
    bmr,
    confusion_matrix,
    dangerous_classes,
    expected_calibration_error,
    macro_f1,
    recalls,
)
from rayfl.metrics.clients import over_clients
from rayfl.metrics.rows import Tables, of_global_model, of_models_beside, of_personal_models
from rayfl.metrics.segmentation import dice_by_image, iou_by_image
from rayfl.metrics.summary import final

__all__ = [
    "Tables",
    "balanced_accuracy",
    "bmr",
    "confusion_matrix",
    "dangerous_classes",
    "dice_by_image",
    "expected_calibration_error",
    "final",
    "iou_by_image",
    "macro_f1",
    "of_global_model",
    "of_models_beside",
    "of_personal_models",
    "over_clients",
    "recalls",
]
