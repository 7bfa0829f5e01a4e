"""Numbers made of predictions and histories, worked out by hand."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score

from rayfl import metrics
from rayfl.errors import UserError
from rayfl.metrics.segmentation import of_masks
from rayfl.tasks import ClassScore, MaskScore, Score


def test_confusion_and_f1_by_hand() -> None:
    """True 0,0,1,2 predicted 0,1,1,1: F1 of 2/3, 1/2 and 0, mean 7/18."""
    confusion = metrics.confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 3)
    assert confusion.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert metrics.macro_f1(confusion) == pytest.approx(7 / 18)


@pytest.mark.parametrize("seed", range(3))
def test_confusion_and_f1_against_scikit_learn(seed: int) -> None:
    """Classes that neither occur nor are predicted don't count."""
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, 4, 30), rng.integers(0, 5, 30)
    confusion = metrics.confusion_matrix(labels, predictions, 7)
    assert (confusion == confusion_matrix(labels, predictions, labels=range(7))).all()
    assert metrics.macro_f1(confusion) == pytest.approx(f1_score(labels, predictions, average="macro"))


def test_ratios_of_nothing() -> None:
    """No rows give 0, not NaN."""
    nothing = np.zeros((3, 3), dtype=np.int64)
    assert metrics.macro_f1(nothing) == metrics.balanced_accuracy(nothing) == 0.0
    assert metrics.expected_calibration_error(np.zeros(0), np.zeros(0, dtype=bool)) == 0.0
    assert metrics.bmr(nothing, (1,)) == {}


def test_recall_by_hand() -> None:
    """True 0,0,0,2 predicted 0,0,1,1: recall 2/3 of class 0, none of class 2; class 1 does not occur."""
    confusion = metrics.confusion_matrix(np.array([0, 0, 0, 2]), np.array([0, 0, 1, 1]), 3)
    assert metrics.recalls(confusion).tolist() == pytest.approx([2 / 3, math.nan, 0], nan_ok=True)
    assert metrics.balanced_accuracy(confusion) == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(3))
def test_balanced_accuracy_against_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    confusion = metrics.confusion_matrix(labels, predictions, 6)
    expected = balanced_accuracy_score(labels, predictions)
    assert metrics.balanced_accuracy(confusion) == pytest.approx(expected, rel=1e-14)


def test_one_class_only() -> None:
    """All of one class: balanced accuracy is accuracy."""
    confusion = metrics.confusion_matrix(np.array([1, 1, 1, 1]), np.array([1, 1, 1, 0]), 2)
    assert metrics.balanced_accuracy(confusion) == 0.75


def test_calibration_by_hand() -> None:
    """0.6 and 0.9 have a bin each, 0.95 and 1.0 share the last: (|1 - .6| + |0 - .9| + |2 - 1.95|) / 4."""
    confidences = np.array([0.6, 0.9, 1.0, 0.95])
    error = metrics.expected_calibration_error(confidences, np.array([True, False, True, True]))
    assert error == pytest.approx((0.4 + 0.9 + 0.05) / 4)


def test_calibration_bins_end_with_their_upper_edge() -> None:
    """With two bins 0.5 belongs to the lower one; alone in it and right, it is 0.5 off."""
    hits = np.array([True, False])
    assert metrics.expected_calibration_error(np.array([0.5, 0.6]), hits, 2) == pytest.approx((0.5 + 0.6) / 2)
    assert metrics.expected_calibration_error(np.array([0.51, 0.6]), hits, 2) == pytest.approx(0.11 / 2)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_against_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidences, hits = rng.random(200), rng.random(200) < 0.6
    expected = 0.0
    for b in range(15):
        mine = (confidences > b / 15) & (confidences <= (b + 1) / 15)
        if mine.any():
            expected += mine.mean() * abs(hits[mine].mean() - confidences[mine].mean())
    assert metrics.expected_calibration_error(confidences, hits) == pytest.approx(expected, rel=1e-12)


def test_calibration_of_what_is_no_number() -> None:
    error = metrics.expected_calibration_error(np.array([0.5, math.nan]), np.array([True, False]))
    assert math.isnan(error)


def test_bmr_by_hand() -> None:
    """Benign 0 and 1, dangerous 2 and 3; rows: 10 of each class.

    Class 2: 4 called benign, 1 called 3; class 3: 2 called benign; class 0: 3 called dangerous, 1 called 1.
    So 6 of 20 dangerous are missed, 6 of 40 in all; 7 of 11 errors are on dangerous rows; 3 of 20 benign
    rows are called dangerous.
    """
    confusion = np.array([[6, 1, 3, 0], [0, 10, 0, 0], [1, 3, 5, 1], [2, 0, 0, 8]])
    assert metrics.bmr(confusion, (2, 3)) == {
        "bmr": 6 / 20,
        "bmr_all": 6 / 40,
        "bmr_err": 7 / 11,
        "bmr_overcall": 3 / 20,
    }


def test_bmr_at_its_ends() -> None:
    """All right: no errors to have a share of. Always benign: all is missed. None dangerous: no ratio."""
    right = metrics.bmr(np.diag([5, 5, 5]), (2,))
    assert right == {"bmr": 0, "bmr_all": 0, "bmr_overcall": 0}
    harmless = metrics.bmr(np.array([[5, 0, 0], [5, 0, 0], [5, 0, 0]]), (2,))
    assert harmless["bmr"] == 1
    assert metrics.bmr(np.diag([5, 5, 0]), (2,)) == {"bmr_all": 0, "bmr_overcall": 0}
    assert metrics.bmr(np.diag([5, 5, 5]), ()) == {}


def test_which_classes_are_dangerous() -> None:
    """The dataset's, less those that the config counts as benign."""
    skin: Any = SimpleNamespace(name="skin", class_names=("AK", "NV", "MEL"), non_benign=(0, 2))
    assert metrics.dangerous_classes(skin) == (0, 2)
    assert metrics.dangerous_classes(skin, ("AK",)) == (2,)
    with pytest.raises(UserError, match="unknown dangerous class 'MLE': did you mean 'MEL'"):
        metrics.dangerous_classes(skin, ("MLE",))
    digits: Any = SimpleNamespace(name="digits", class_names=(), non_benign=())
    assert metrics.dangerous_classes(digits) == ()
    with pytest.raises(UserError, match="benign=3 makes no difference"):
        metrics.dangerous_classes(digits, ("3",))


def pixels(overlaps: Any, predicted: Any, actual: Any, loss: float = 0.0) -> MaskScore:
    """Counts [n, F]."""
    counts = {"overlaps": overlaps, "predicted": predicted, "actual": actual}
    return MaskScore(loss=loss, **{name: torch.tensor(count) for name, count in counts.items()})


def test_masks_by_hand() -> None:
    """Images: half found, all found, rightly empty, wrongly called lesion."""
    score = pixels([[2], [3], [0], [0]], [[2], [3], [0], [5]], [[4], [3], [0], [0]])
    assert metrics.dice_by_image(score).tolist() == pytest.approx([4 / 6, 1, 1, 0])
    assert metrics.iou_by_image(score).tolist() == pytest.approx([2 / 4, 1, 1, 0])
    found = of_masks(score)
    assert found == {
        "iou": pytest.approx(2.5 / 4),
        "micro_dice": pytest.approx(2 * 5 / (10 + 7)),
        "micro_iou": pytest.approx(5 / (10 + 7 - 5)),
    }


def test_masks_of_several_classes() -> None:
    """The mean is over the classes that an image has or is said to have."""
    score = pixels([[2, 0], [1, 1]], [[2, 0], [1, 2]], [[4, 0], [1, 1]])
    assert metrics.dice_by_image(score).tolist() == pytest.approx([4 / 6, (1 + 2 / 3) / 2])


def test_empty_masks_rightly_left_empty() -> None:
    """Nothing to find and nothing found is all that can be asked."""
    found = of_masks(pixels([[0]], [[0]], [[0]]))
    assert found == {"iou": 1.0, "micro_dice": 1.0, "micro_iou": 1.0}


def test_over_clients() -> None:
    """Mean, population std and the worst tenth, at least one client."""
    found = metrics.over_clients([0.5, 1.0])
    assert found["client/test_accuracy_mean"] == 0.75
    assert found["client/test_accuracy_std"] == 0.25
    assert found["client/test_accuracy_worst10"] == 0.5
    twenty = metrics.over_clients([i / 20 for i in range(20)])
    assert twenty["client/test_accuracy_worst10"] == pytest.approx(0.025)
    assert metrics.over_clients([]) == {}


LABELS = np.array([0, 1, 2, 3, 4, 5, 6, 0])
PREDICTIONS = [0, 1, 2, 0, 4, 0, 0, 1]


def classes(rows: slice, loss: float) -> ClassScore:
    """The score of some rows of PREDICTIONS; all labels but the last are in the top five."""
    top = torch.tensor([True] * 7 + [False])
    return ClassScore(
        loss=loss,
        predictions=torch.tensor(PREDICTIONS, dtype=torch.int32)[rows],
        in_top5=top[rows],
        confidences=torch.full((8,), 0.75)[rows],
    )


def federation(**changes: Any) -> Any:
    """Eight test rows of seven classes over three clients, of whom one has none; rows 1 and 3 held out."""
    split: dict[str, Any] = {
        "name": "skin", "labels": LABELS, "num_classes": 7, "class_names": (), "non_benign": (),
    }  # fmt: skip

    class Rows(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.labels)

    return SimpleNamespace(
        train=Rows(**split),
        test=Rows(**{**split, **changes}),
        validation_indices=np.array([1, 3]),
        client_indices=(np.arange(4), np.arange(4, 7), np.arange(7, 8)),
        client_test_indices=(np.array([0, 1, 3]), np.array([], dtype=np.int64), np.array([5, 6])),
    )


def test_a_round_of_the_global_model() -> None:
    """Four of eight are right. Recall 1/2, 1, 1, 0, 1, 0, 0; confidence 3/4 against 1/2 in one bin."""
    held_out = ClassScore(
        loss=3.0,
        predictions=torch.tensor([1, 0], dtype=torch.int32),
        in_top5=torch.tensor([True, True]),
        confidences=torch.tensor([1.0, 1.0]),
    )
    none = classes(slice(0), 0.0)
    scores = {0: (classes(slice(0, 5), 1.5), held_out), 1: (classes(slice(5, 8), 2.5), none)}
    row, tables = metrics.of_global_model(scores, federation(), (3, 5))
    assert row == {
        "global/test_accuracy": 0.5,
        "global/test_loss": 0.5,
        "global/test_macro_f1": pytest.approx((2 / 6 + 2 / 3 + 1 + 0 + 1 + 0 + 0) / 7),
        "global/test_balanced_accuracy": pytest.approx(3.5 / 7),
        "global/test_top5_accuracy": 7 / 8,
        "global/test_ece": pytest.approx(0.25),
        "global/test_bmr": 1.0,
        "global/test_bmr_all": 2 / 8,
        "global/test_bmr_err": 2 / 4,
        "global/test_bmr_overcall": 0.0,
        **{f"global/test_recall/{k}": recall for k, recall in enumerate([0.5, 1, 1, 0, 1, 0, 0])},
        "client/test_accuracy_mean": pytest.approx(1 / 3),
        "client/test_accuracy_std": pytest.approx(1 / 3),
        "client/test_accuracy_worst10": 0.0,
        "global/val_accuracy": 0.5,
        "global/val_loss": 1.5,
    }
    assert np.trace(tables["confusion"]) == 4
    assert tables["clients"] == [
        ["client", "num_samples", "num_test", "accuracy"],
        [0, 4, 3, pytest.approx(2 / 3)],
        [1, 3, 0, ""],
        [2, 1, 2, 0.0],
    ]


@pytest.mark.parametrize("cuts", [[4, 8], [0, 2, 2, 7, 8]])
def test_a_round_is_the_same_however_it_was_sliced(cuts: list[int]) -> None:
    """To the last bit, as long as the losses of slices add up."""
    bounds = [0, *cuts]
    parts = [classes(slice(a, b), float(b - a)) for a, b in zip(bounds, cuts, strict=False)]
    data = federation(class_names=("a", "b", "c", "d", "e", "f", "g"))
    data.validation_indices = np.zeros(0, dtype=np.int64)
    sliced = metrics.of_global_model(
        {i: (part, classes(slice(0), 0.0)) for i, part in enumerate(parts)}, data
    )
    whole = metrics.of_global_model({0: (classes(slice(8), 8.0), classes(slice(0), 0.0))}, data)
    assert sliced == whole
    assert "global/test_recall/g" in whole[0]


def test_many_classes_have_no_curves_of_their_own() -> None:
    """Nor have few classes a top five."""
    data = federation(num_classes=21)
    data.validation_indices = np.zeros(0, dtype=np.int64)
    scores: dict[int, tuple[Score, Score]] = {0: (classes(slice(8), 8.0), classes(slice(0), 0.0))}
    assert not any("recall" in name for name in metrics.of_global_model(scores, data)[0])
    few = federation(num_classes=5, labels=LABELS % 5)
    few.validation_indices = data.validation_indices
    assert "global/test_top5_accuracy" not in metrics.of_global_model(scores, few)[0]


def test_a_round_of_masks() -> None:
    """The headline is Dice, for the model, the clients and the held-out rows."""
    score = pixels([[2], [3]], [[2], [3]], [[4], [3]], loss=1.0)
    data = federation(labels=np.zeros(2, dtype=np.int64), num_classes=1)
    data.client_test_indices = (np.array([0]), np.array([1]), np.array([], dtype=np.int64))
    held_out = pixels([[1], [0]], [[1], [0]], [[1], [1]], loss=3.0)
    row, tables = metrics.of_global_model({0: (score, held_out)}, data)
    assert row["global/test_dice"] == pytest.approx((2 / 3 + 1) / 2)
    assert row["global/test_iou"] == pytest.approx((1 / 2 + 1) / 2)
    assert row["global/test_loss"] == 0.5
    assert row["client/test_dice_worst10"] == pytest.approx(2 / 3)
    assert (row["global/val_dice"], row["global/val_loss"]) == (0.5, 1.5)
    assert not any("accuracy" in name for name in row)
    assert [line[3] for line in tables["clients"]] == ["dice", pytest.approx(2 / 3), 1.0, ""]
    assert "confusion" not in tables


def test_a_round_of_personal_models() -> None:
    """The mean over clients of every metric, and each client's accuracy on its own rows."""
    wrong = ClassScore(
        loss=16.0,
        predictions=torch.tensor([1, 0, 0, 0, 0, 6, 5, 2], dtype=torch.int32),
        in_top5=torch.zeros(8, dtype=torch.bool),
        confidences=torch.ones(8),
    )
    scores: dict[int, tuple[Score, Score]] = {
        0: (classes(slice(8), 8.0), classes(slice(3), 1.0)),
        1: (classes(slice(8), 8.0), classes(slice(0), 0.0)),
        2: (wrong, classes(slice(5, 7), 1.0)),
    }
    row, tables = metrics.of_personal_models(scores, federation())
    assert row["global/test_accuracy"] == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert row["global/test_loss"] == pytest.approx((1 + 1 + 2) / 3)
    assert row["global/test_top5_accuracy"] == pytest.approx((7 / 8 + 7 / 8 + 0) / 3)
    # Own labels: 0, 1, 3 predicted 0, 1, 2; and 5, 6 predicted 0, 0.
    assert row["client/test_accuracy_mean"] == pytest.approx((2 / 3 + 0) / 2)
    assert [line[3] for line in tables["clients"][1:]] == [pytest.approx(2 / 3), "", 0.0]
    assert [line[4] for line in tables["clients"][1:]] == [0.5, 0.5, 0.0]


def test_what_is_no_number_is_no_crash() -> None:
    """The loss says that the run diverged."""
    score = ClassScore(
        loss=math.nan,
        predictions=torch.zeros(8, dtype=torch.int32),
        in_top5=torch.zeros(8, dtype=torch.bool),
        confidences=torch.full((8,), math.nan),
    )
    data = federation()
    data.validation_indices = np.zeros(0, dtype=np.int64)
    row, _ = metrics.of_global_model({0: (score, score)}, data)
    assert math.isnan(row["global/test_loss"])
    assert math.isnan(row["global/test_ece"])
    assert row["global/test_accuracy"] == 2 / 8


def history(accuracies: Sequence[float | None]) -> list[dict[str, float]]:
    """Rounds from 0 of 2 s and 100 bytes each; None where nothing was scored."""
    rows = []
    for t, accuracy in enumerate(accuracies):
        row = {"round": float(t), "wall/round_s": 2.0 if t else 0.0, "comm/total_bytes": 100.0 * t}
        rows.append(row if accuracy is None else {**row, "global/test_accuracy": accuracy})
    return rows


def test_final() -> None:
    """Round 0 and rounds that weren't scored are left out; the first round at a target counts."""
    found = metrics.final(history([0.9, 0.2, None, 0.6, 0.5]), [0.5, 0.6, 0.95])
    assert found == {
        "final/accuracy": 0.5,
        "final/last10_accuracy": pytest.approx((0.2 + 0.6 + 0.5) / 3),
        "final/best_accuracy": 0.6,
        "final/best_round": 3.0,
        "final/rounds_to_0.5": 3.0,
        "final/bytes_to_0.5": 300.0,
        "final/time_to_0.5": 6.0,
        "final/rounds_to_0.6": 3.0,
        "final/bytes_to_0.6": 300.0,
        "final/time_to_0.6": 6.0,
    }


def test_final_of_masks() -> None:
    """Goes by Dice, under its name."""
    rows = [
        {key.replace("accuracy", "dice"): v for key, v in row.items()} for row in history([0.1, 0.4, 0.6])
    ]
    found = metrics.final(rows, [0.5])
    assert found["final/dice"] == found["final/best_dice"] == 0.6
    assert found["final/last10_dice"] == 0.5
    assert found["final/rounds_to_0.5"] == 2.0


def test_time_to_a_target_is_training_alone() -> None:
    """Start-up before round 0, evaluation and checkpoints have no part in it."""
    rows = [{**row, "wall/eval_s": 50.0} for row in history([0.1, 0.2, 0.8])]
    rows[0]["wall/round_s"] = 100.0
    assert metrics.final(rows, [0.8])["final/time_to_0.8"] == 4.0


def test_last_ten() -> None:
    """Only the last ten scored rounds are averaged."""
    found = metrics.final(history([0.0] * 6 + [0.5] * 10), [])
    assert found["final/last10_accuracy"] == 0.5


def test_final_of_no_rounds() -> None:
    """Zero rounds quote round 0; an empty history quotes nothing."""
    assert metrics.final(history([0.3]), [])["final/accuracy"] == 0.3
    assert metrics.final([], [0.5]) == {}
