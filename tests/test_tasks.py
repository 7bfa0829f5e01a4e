"""What is learnt: losses and scores worked out by hand, or in numpy."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional as F

from rayfl.config import ExperimentConfig
from rayfl.console import summary
from rayfl.experiment import Result
from rayfl.messages import SmashedBatch, weigh
from rayfl.progress import SweepProgress
from rayfl.report.table import cells_frame, grid_table
from rayfl.runs import Stored
from rayfl.tasks import (
    TASKS,
    Classification,
    ClassScore,
    MaskScore,
    Reduction,
    Score,
    Segmentation,
    headline,
    join,
)

CLASSES, MASKS = Classification(), Segmentation()


def test_cross_entropy_by_hand() -> None:
    """Even logits over K classes cost ln K a sample, as a mean or a sum."""
    logits, labels = torch.zeros(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    assert CLASSES.loss(logits, labels, "mean").item() == pytest.approx(math.log(3))
    assert CLASSES.loss(logits, labels, "sum").item() == pytest.approx(5 * math.log(3))


def test_cross_entropy_is_torchs_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(9, 4, generator=draw), torch.randint(4, (9,), generator=draw)
    assert torch.equal(CLASSES.loss(logits, labels, "mean"), F.cross_entropy(logits, labels))


def masks(count: int, num_classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random logits and masks of 5x4 pixels; the first image is all of class 0."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, num_classes, 5, 4, dtype=torch.float64, generator=draw)
    labels = torch.randint(max(num_classes, 2), (count, 5, 4), generator=draw).to(torch.uint8)
    labels[0] = 0
    return logits, labels


def test_binary_mask_loss_by_hand() -> None:
    """Two pixels at probability 1/2, one of them lesion: cross-entropy ln 2, soft Dice (1 + 1) / (2 + 1)."""
    logits, labels = torch.zeros(1, 1, 1, 2, dtype=torch.float64), torch.tensor([[[1, 0]]], dtype=torch.uint8)
    assert MASKS.loss(logits, labels, "mean").item() == pytest.approx(math.log(2) + 1 - 2 / 3)


def mask_loss(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.uint8]) -> float:
    """The loss of one image, logits [K, H, W], by the formula."""
    if len(logits) == 1:
        shares = 1 / (1 + np.exp(-logits))
        truth = (labels == 1)[None]
        entropy = -np.where(truth, np.log(shares), np.log(1 - shares)).mean()
    else:
        shares = np.exp(logits) / np.exp(logits).sum(0)
        truth = np.stack([labels == k for k in range(len(logits))])
        entropy = -np.log(shares[truth]).sum() / labels.size
    dice = [(2 * (p * m).sum() + 1) / (p.sum() + m.sum() + 1) for p, m in zip(shares, truth, strict=True)]
    return float(entropy + 1 - np.mean(dice))


@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_mask_loss_against_numpy(num_classes: int) -> None:
    """A batch's loss is the mean or sum of its images' losses."""
    logits, labels = masks(3, num_classes)
    each = [mask_loss(a, b) for a, b in zip(logits.numpy(), labels.numpy(), strict=True)]
    assert MASKS.loss(logits, labels, "mean").item() == pytest.approx(np.mean(each), rel=1e-12)
    assert MASKS.loss(logits, labels, "sum").item() == pytest.approx(np.sum(each), rel=1e-12)


@pytest.mark.parametrize("empty", [False, True])
def test_a_sure_and_right_mask_costs_nothing(empty: bool) -> None:
    """Also where there is nothing to find."""
    labels = torch.zeros(2, 3, 3, dtype=torch.uint8)
    if not empty:
        labels[:, 1] = 1
    logits = (labels.double() * 2 - 1)[:, None] * 60
    assert MASKS.loss(logits, labels, "mean").item() == pytest.approx(0, abs=1e-12)
    assert MASKS.loss(-logits, labels, "mean").item() > 60


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_bfloat16_outputs_are_lost_in_float32(
    task: Segmentation | Classification, reduction: Reduction
) -> None:
    if task.headline == "dice":
        logits, labels = masks(2, 1)
    else:
        logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3
    coarse = logits.bfloat16()
    loss = task.loss(coarse, labels, reduction)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, task.loss(coarse.float(), labels, reduction))


def test_what_is_kept_of_classes() -> None:
    """Of equals the first wins, and the first five are the top five."""
    logits = torch.zeros(3, 7, dtype=torch.float64)
    logits[1, 6] = math.log(6)
    score = CLASSES.score(logits, torch.tensor([4, 5, 6]))
    assert score.predictions.tolist() == [0, 6, 0]
    # Row 0: classes 0..4; row 1: 6 and 0..3; row 2: 0..4.
    assert score.in_top5.tolist() == [True, False, False]
    assert score.confidences.tolist() == pytest.approx([1 / 7, 1 / 2, 1 / 7])
    assert score.loss == pytest.approx(2 * math.log(7) + math.log(12))


def test_what_is_kept_of_a_binary_mask() -> None:
    """A probability of 1/2 is not yet lesion."""
    logits = torch.tensor([[[[1.0, -1.0, 0.0, 2.0]]]], dtype=torch.float64)
    score = MASKS.score(logits, torch.tensor([[[1, 1, 1, 0]]], dtype=torch.uint8))
    assert [part.tolist() for part in (score.overlaps, score.predicted, score.actual)] == [
        [[1]],
        [[2]],
        [[3]],
    ]


def test_what_is_kept_of_several_classes() -> None:
    """The background is left out."""
    logits, labels = masks(4, 3)
    score = MASKS.score(logits, labels)
    found = logits.argmax(1)
    for k in (1, 2):
        assert torch.equal(score.predicted[:, k - 1], (found == k).sum((1, 2)))
        assert torch.equal(score.actual[:, k - 1], (labels == k).sum((1, 2)))
        assert torch.equal(score.overlaps[:, k - 1], ((found == k) & (labels == k)).sum((1, 2)))


def test_one_class_is_two_with_background() -> None:
    """Logits (0, z) of two classes are the logit z of one."""
    logits, labels = masks(4, 1)
    both = torch.cat([torch.zeros_like(logits), logits], dim=1)
    one, two = MASKS.score(logits, labels), MASKS.score(both, labels)
    for name in ("overlaps", "predicted", "actual"):
        assert torch.equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_parts_join_to_the_whole(kind: str) -> None:
    """Whatever the parts, also empty ones: the same rows to the bit."""
    if kind == "segmentation":
        logits, labels = masks(10, 3)
    else:
        draw = torch.Generator().manual_seed(1)
        logits, labels = torch.randn(10, 8, generator=draw), torch.randint(8, (10,), generator=draw)
    task = TASKS[kind]
    whole = task.score(logits, labels)
    for bounds in ([0, 10], [0, 3, 3, 10], [0, 0, 1, 9, 10]):
        parts: list[Score] = []
        for a, b in itertools.pairwise(bounds):
            parts.append(task.score(logits[a:b], labels[a:b]) if b > a else task.nothing(logits.shape[1]))
        joined = join(parts)
        assert type(joined) is type(whole)
        assert joined.loss == pytest.approx(whole.loss, rel=1e-14)
        for name, value in vars(whole).items():
            if name != "loss":
                assert getattr(joined, name).dtype == value.dtype
                assert torch.equal(getattr(joined, name), value), name


def test_not_a_number_is_scored() -> None:
    """Logits that are no numbers give a loss that is none, and no exception."""
    classes = CLASSES.score(torch.full((2, 6), math.nan), torch.tensor([0, 1]))
    assert isinstance(classes, ClassScore)
    pixels = MASKS.score(torch.full((2, 1, 2, 2), math.nan), torch.ones(2, 2, 2, dtype=torch.uint8))
    assert isinstance(pixels, MaskScore)
    assert math.isnan(classes.loss)
    assert math.isnan(pixels.loss)


def test_a_mask_travels_at_a_byte_a_pixel() -> None:
    batch = SmashedBatch(torch.zeros(2, 3, 1, 1), torch.zeros(2, 8, 8, dtype=torch.uint8))
    assert weigh(batch) == {"activation": 2 * 3 * 4, "label": 2 * 8 * 8}


def test_headline() -> None:
    """Whatever a round was scored by; nothing where it was not."""
    assert headline({"round": 1.0, "global/test_accuracy": 0.5}) == ("accuracy", 0.5)
    assert headline({"global/test_dice": 0.7, "global/test_iou": 0.6}) == ("dice", 0.7)
    assert headline({"final/last10_dice": 0.7}, "final/last10_") == ("dice", 0.7)
    assert headline({"wall/round_s": 1.0}) is None


def test_what_people_read_goes_by_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    """Of masks: the end of a run, the progress of a sweep and its table."""
    found = {"dice": 0.7, "last10_dice": 0.65, "best_dice": 0.75, "best_round": 3.0, "rounds_to_0.5": 2.0}
    numbers = {"global/test_dice": 0.7, **{f"final/{name}": value for name, value in found.items()}}
    config = ExperimentConfig()
    result = Result("FINISHED", 4, numbers, [], "ab", config.cell_hash, "cd")
    read = summary(result, "out", ended_before=False)
    assert "test dice 0.7000 (best 0.7500 in round 3)\ndice 0.5 reached in round 2" in read

    SweepProgress(live=False).end("cell", "FINISHED", numbers)
    assert "cell: FINISHED, dice 65.00 %" in capsys.readouterr().err

    frame = cells_frame("masks", [config], {}, {config.cell_hash: Stored(result, {}, None)})
    assert (frame["final/best_dice"] == 0.75).all()
    assert "final/accuracy" not in frame
    table = grid_table(frame).plain()
    assert table.splitlines()[0].split() == ["method", "dice"]
    assert "65.00" in table
    assert "test dice in %, last 10 evaluated rounds" in table
    assert "70.00" in grid_table(frame, "final/dice").plain()
