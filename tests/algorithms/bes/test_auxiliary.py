"""The model that is scored and the one that each client has for itself."""

from typing import Any

import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional as F

from rayfl.algorithms import ALGORITHMS
from rayfl.algorithms.bes.auxiliary import LogAlpha, Pool, extended
from rayfl.algorithms.bes.config import DistillationConfig, EvidenceConfig
from rayfl.algorithms.bes.evidence import evidence
from rayfl.algorithms.besplit import BESplit
from rayfl.errors import UserError
from rayfl.models import ModelConfig
from rayfl.models.zoo import assemble

Config: Any = ALGORITHMS["besplit"].Config


@pytest.mark.parametrize(("size", "side"), [((8, 8), 4), ((7, 10), 4), ((3, 2), 4), ((5, 6), 1)])
def test_pooling_is_adaptive_mean_pooling(size: tuple[int, int], side: int) -> None:
    """In cells as torch's own; maps with fewer pixels than cells stay as they are."""
    features = torch.randn(2, 3, *size, dtype=torch.float64)
    pool = Pool((3, *size), side).double()
    cells = tuple(min(side, pixels) for pixels in size)
    assert torch.allclose(pool(features), F.adaptive_avg_pool2d(features, cells).flatten(1), atol=1e-12)
    assert pool.size == 3 * cells[0] * cells[1]
    assert pool.state_dict() == {}


def test_tokens_and_vectors_are_pooled_too() -> None:
    tokens = torch.randn(2, 5, 7)
    assert torch.equal(Pool((5, 7), 4)(tokens), tokens.mean(1))
    assert (Pool((5, 7), 4).size, Pool((7,), 4).size) == (7, 7)
    assert torch.equal(Pool((7,), 4)(tokens[:, 0]), tokens[:, 0])


@pytest.mark.parametrize("act", ["exp", "softplus", "relu"])
def test_the_softmax_of_what_is_scored_is_the_mean_of_the_dirichlet(act: Any) -> None:
    """p = alpha / S, also where a logit is at the cap."""
    config = EvidenceConfig(act=act)
    logits = torch.tensor([[1.0, -2.0, 0.5], [30.0, 2e4, -1.0]], dtype=torch.float64)
    alpha = 1 + evidence(logits, config)
    found = LogAlpha(config)(logits).softmax(1)
    assert torch.allclose(found, alpha / alpha.sum(1, keepdim=True), atol=1e-12)


@pytest.mark.parametrize("loss", ["edl", "ce"])
def test_the_whole_model_is_its_parts(loss: str) -> None:
    """Blocks give logits; called as a whole it gives what is scored."""
    plan = tiny.blueprint("besplit", model="group", loss=loss)
    whole, parts = tiny.initial(plan), tiny.cut_parts(plan)
    inputs = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    logits = parts["main"](parts["client"](inputs))
    scored = logits if loss == "ce" else LogAlpha(plan.config.evidence)(logits)  # type: ignore[attr-defined]
    assert torch.allclose(whole(inputs), scored, atol=1e-12)
    plain = tiny.blueprint("splitfed_v1", model="group")
    assert tiny.identical(tiny.state_of(whole), tiny.state_of(tiny.initial(plain)))


@pytest.mark.parametrize(("pool", "features"), [("4x4", 4 * 4 * 4), ("gap", 4)])
def test_an_auxiliary_model_is_the_client_side_model_and_a_head(pool: Any, features: int) -> None:
    """Its blocks begin as the first client-side model; the head is drawn, by the seed."""
    plans = [
        tiny.blueprint("besplit", model="group", dtd=DistillationConfig(aux_pool=pool), seed=s)
        for s in (1, 1, 2)
    ]
    made = [tiny.cut_parts(plan) for plan in plans]
    auxiliary, client = made[0]["auxiliary"], made[0]["client"]
    own = dict(auxiliary.state_dict())
    heads = [parts["auxiliary"][-1] for parts in made]
    assert own.keys() - client.state_dict().keys() == {"head.weight", "head.bias"}
    assert tiny.identical({name: own[name] for name in client.state_dict()}, tiny.state_of(client))
    assert auxiliary[-1].weight.shape == (3, features)
    assert torch.equal(heads[0].weight, heads[1].weight)  # type: ignore[arg-type]
    assert not torch.equal(heads[0].weight, heads[2].weight)  # type: ignore[arg-type]
    assert next(auxiliary.parameters()).data_ptr() != next(client.parameters()).data_ptr()
    assert auxiliary(torch.randn(2, 2, 8, 8, dtype=torch.float64)).shape == (2, 3)


def test_a_cut_that_several_tensors_cross() -> None:
    with pytest.raises(
        UserError, match=r"block 'block1' puts out several: cut elsewhere, or set algorithm\.dtd"
    ):
        extended(Config(cut_layer=2), tiny.build("pair"), (6,), 0)  # type: ignore[arg-type]
    assert len(extended(Config(cut_layer=1), tiny.build("pair"), (6,), 0).layers) == 2  # type: ignore[arg-type]
    without = Config(cut_layer=2, dtd=DistillationConfig(enabled=False))
    assert extended(without, tiny.build("pair"), (6,), 0).layers == ()  # type: ignore[arg-type]


def test_masks_are_refused() -> None:
    with pytest.raises(UserError, match="evidence to classes of images, the model's outputs are maps"):
        extended(Config(), nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 1, 1)), (2, 8, 8), 0)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny", "mobilenet_v3_small"])
def test_large_models(name: str) -> None:
    """A step of each part fits the next."""
    shape = (3, 32, 32)
    model = extended(Config(), assemble(ModelConfig(name=name, width=0.25), shape, 5), shape, 0)
    parts = BESplit.cut(Config(), model)
    inputs = torch.randn(2, *shape)
    assert parts["main"](parts["client"](inputs)).shape == parts["auxiliary"](inputs).shape == (2, 5)
    sizes = {role: sum(p.numel() for p in part.parameters()) for role, part in parts.items()}
    assert sizes["client"] < sizes["auxiliary"]
