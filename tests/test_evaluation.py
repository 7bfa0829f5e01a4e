"""Scoring on hosts and masks through rounds: what a model does on fixed rows, wherever they are scored."""

import dataclasses
import functools
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from rayfl import data, metrics
from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig
from rayfl.data.info import DatasetInfo
from rayfl.errors import UserError
from rayfl.evaluation import batch_size, evaluate
from rayfl.experiment import Experiment
from rayfl.fleet import Fleet
from rayfl.host import Batch, Blueprint, Host
from rayfl.models import ModelConfig
from rayfl.models.blocks import Backbone
from rayfl.models.zoo import MODELS
from rayfl.roles import Client
from rayfl.tasks import ClassScore, MaskScore, join
from rayfl.training import Rows

SIZES = (6, 3, 9)


@dataclasses.dataclass(frozen=True)
class Spots:
    """Noisy 1x8x8 images with a bright rectangle, and the masks that show where."""

    inputs: torch.Tensor
    masks: torch.Tensor

    def __len__(self) -> int:
        return len(self.masks)

    def batch(
        self, indices: Rows, dtype: torch.dtype, device: str, augment: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Some rows."""
        rows = torch.from_numpy(np.asarray(indices))
        return self.inputs[rows].to(dtype), self.masks[rows]


def spots(count: int, seed: int) -> Spots:
    """The first image has no spot."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((count, 8, 8), dtype=np.uint8)
    for mask in masks[1:]:
        y, x = rng.integers(0, 5, 2)
        mask[y : y + rng.integers(2, 5), x : x + rng.integers(2, 5)] = 1
    inputs = masks[:, None] + rng.normal(0, 0.5, (count, 1, 8, 8))
    return Spots(torch.from_numpy(inputs), torch.from_numpy(masks))


def build(channels: int) -> nn.Sequential:
    """Two convolutions that keep the size."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        first, head = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, channels, 3, padding=1)
        return nn.Sequential(OrderedDict(first=first, middle=nn.Tanh(), head=head))


def masked(method: str, channels: int = 1, **options: Any) -> Blueprint:
    """Three clients that learn where the spots are."""
    plan = tiny.blueprint(method, SIZES, lr=0.5, **options)
    return dataclasses.replace(
        plan,
        facts=dataclasses.replace(plan.facts, task="segmentation", num_classes=channels, batch_norm=False),
        model=functools.partial(build, channels),
        train=spots(sum(SIZES), 1),
        test=spots(20, 2),
        client_test_rows=tuple(np.arange(i, 20, 3) for i in range(3)),
        validation_rows=np.arange(5),
    )


def scored(federation: tiny.Federation) -> tuple[MaskScore, dict[int, Any]]:
    """The global model on all test rows, and by slice."""
    with federation.fleet.phase("evaluation"):
        parts = federation.algorithm.global_model(federation.t)
        scores = federation.fleet.gather(federation.fleet.group("evaluator").score(*parts))
    federation.fleet.settle()
    return join([test for test, _ in scores.values()]), scores


def sealed(plan: Blueprint) -> Fleet:
    return tiny.sealed(plan, client_actors=2, placement="separate")


@pytest.mark.parametrize("channels", [1, 2])
def test_fedavg_learns_masks(channels: int) -> None:
    """With one logit a pixel or two; the same bits, pixels and bytes in this process and under seal."""
    plan = masked("fedavg", channels, local_epochs=3)
    here, there = tiny.Federation(plan), tiny.Federation(plan, sealed(plan))
    before, _ = scored(here)
    after, slices = scored(here.run(8))
    assert after.loss < 0.5 * before.loss
    assert metrics.dice_by_image(after).mean() > 0.7 > metrics.dice_by_image(before).mean()
    elsewhere, slices_there = scored(there.run(8))
    assert tiny.identical(here.weights(), there.weights())
    assert here.traffic(8) == there.traffic(8)
    assert str(slices) == str(slices_there)
    assert elsewhere.loss == after.loss


@pytest.mark.parametrize(("method", "label_bytes"), [("splitfed_v1", sum(SIZES) * 64), ("splitfed_u", 0)])
def test_split_methods_learn_masks_as_fedavg_does(method: str, label_bytes: int) -> None:
    """SplitFed v1 sends the masks to the main server, a byte a pixel; with SplitFed U they stay at home."""
    plan = masked(method, cut_layer=1)
    federation = tiny.Federation(plan, sealed(plan)).run(2)
    assert tiny.difference(federation.weights(), tiny.run(masked("fedavg"), 2)) < 1e-10
    assert federation.traffic(1).get(("client-main", "up", "label"), 0) == label_bytes


def test_merged_batches_learn_masks() -> None:
    """A step of MergeSFL is a step on the union of the clients' batches, also of masks."""
    plan = masked("mergesfl", cut_layer=1, batch_size=3, local_steps=1, momentum=0.0)
    merged = tiny.Federation(plan).run(1).weights()
    model = plan.model().double()
    drawn = [next(tiny.client_batches(plan, 1, i, 1)) for i in range(3)]
    inputs, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    optimizer = tiny.optimizer_for(plan, model)
    Host(plan).loss(model(inputs), labels).backward()
    optimizer.step()
    assert tiny.difference(merged, tiny.state_of(model)) < 1e-12


class Doubled(Client):
    """A client whose method has a loss of its own."""

    def loss(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = 2 * super().loss(batch)
        return loss


def test_a_method_may_change_the_loss() -> None:
    """Twice the loss is twice the learning rate."""
    plain = tiny.blueprint("fedavg")
    method = type("Twice", (plain.algorithm,), {"Client": Doubled})
    twice = tiny.blueprint(method, lr=0.05)
    assert tiny.difference(tiny.run(twice), tiny.run(plain)) < 1e-12


def test_slices_join_to_the_whole() -> None:
    """Rows scored in two parts, or none, are the rows scored at once."""
    plan = tiny.blueprint("fedavg")
    host, model = Host(plan), tiny.initial(plan).eval()
    rows = np.arange(12)
    whole = evaluate(host, model, plan.test, rows)
    parts = join([evaluate(host, model, plan.test, part) for part in (rows[:5], rows[5:5], rows[5:])])
    assert isinstance(whole, ClassScore)
    assert isinstance(parts, ClassScore)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert torch.equal(parts.predictions, whole.predictions)
    assert torch.equal(parts.in_top5, whole.in_top5)
    assert torch.allclose(parts.confidences, whole.confidences, rtol=1e-6)
    inputs, labels = plan.test.batch(rows, torch.float64, "cpu")
    logits = model(inputs)
    assert whole.loss == pytest.approx(12 * tiny.loss(logits, labels).item(), rel=1e-12)
    assert whole.predictions.tolist() == logits.argmax(1).tolist()


def test_a_batch_of_large_images_is_small() -> None:
    """256 MNIST or CIFAR images, 27 of 3x224x224, one of any size."""
    assert [batch_size(n) for n in (784, 3072, 3 * 224 * 224, 10**8)] == [256, 256, 27, 1]


def test_one_image_is_read_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a host, once; all others once per score."""
    plan = masked("fedavg")
    read: list[int] = []
    batch = Spots.batch
    monkeypatch.setattr(
        Spots, "batch", lambda of, rows, *more: (read.extend(rows), batch(of, rows, *more))[1]
    )
    host = Host(plan)
    for _ in range(2):
        evaluate(host, plan.model().double(), plan.test, np.arange(3, 20))
    assert read == [0, *range(3, 20), *range(3, 20)]


def test_batches_change_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = masked("fedavg")
    host, model = Host(plan), plan.model().double().eval()
    whole = evaluate(host, model, plan.test, np.arange(20))
    monkeypatch.setattr("rayfl.evaluation.MOST_VALUES", 3 * 64)
    pieces = evaluate(host, model, plan.test, np.arange(20))
    assert isinstance(whole, MaskScore)
    assert isinstance(pieces, MaskScore)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-12)
    for name in ("overlaps", "predicted", "actual"):
        assert torch.equal(getattr(whole, name), getattr(pieces, name))


def built(*_: Any) -> data.Built:
    """The spots as a dataset's builder gives them."""
    splits = []
    for count, seed in ((40, 1), (12, 2)):
        made = spots(count, seed)
        images = (made.inputs.clamp(-1, 2) * 60 + 70).byte().numpy()
        zeros = np.zeros(count, dtype=np.int64)
        splits.append(data.Split(images=images, labels=zeros, masks=made.masks.numpy()))
    return data.Built(train=splits[0], test=splits[1], num_classes=1, task="segmentation")


@pytest.fixture
def spotted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes configs of experiments on spots."""
    info = DatasetInfo(build=built, description="spots", remedy="none")
    monkeypatch.setitem(data.DATASETS, "spots", info)
    monkeypatch.setitem(MODELS, "two", (lambda *_: Backbone(OrderedDict(build(1).named_children())), "two"))

    def config(model: str = "two", **options: Any) -> ExperimentConfig:
        return ExperimentConfig(
            rounds=3,
            targets=(0.1,),
            algorithm=ALGORITHMS["fedavg"].Config(**{"lr": 0.3, "batch_size": 4, **options}),
            data=data.DataConfig(name="spots", num_clients=3, val_fraction=0.2, root=str(tmp_path)),
            model=ModelConfig(name=model),
        )

    return config


def test_an_experiment_on_masks(spotted: Any) -> None:
    """From a dataset's builder to the summary, which goes by Dice."""
    experiment = Experiment(spotted(local_epochs=5))
    result = experiment.run()
    first, last = result.history[0], result.history[-1]
    assert result.status == "FINISHED"
    assert last["global/test_loss"] < first["global/test_loss"]
    assert last["global/test_dice"] > first["global/test_dice"]
    assert last["global/test_dice"] == result.metrics["final/dice"]
    assert "final/rounds_to_0.1" in result.metrics
    assert {"global/test_iou", "global/val_dice", "client/test_dice_mean"} <= last.keys()
    assert not any("accuracy" in name for name in result.metrics)


def test_masks_that_diverge_are_a_result(spotted: Any) -> None:
    """Not a crash."""
    result = Experiment(spotted(lr=3e38)).run()
    assert result.status == "DIVERGED"
    assert not math.isfinite(result.metrics["global/test_loss"])


def test_a_model_of_another_task_is_refused(spotted: Any) -> None:
    with pytest.raises(
        UserError, match=r"needs a model with outputs \(1, 8, 8\), got \(1,\) from model.name=cnn"
    ):
        Experiment(spotted(model="cnn"))
