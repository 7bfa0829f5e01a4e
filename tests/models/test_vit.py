"""Vision transformers: timm's networks, published sizes, and prompts that nothing but attention sees."""

import pytest
import timm
import torch

from rayfl.models import ModelConfig, block_names, build, cut, insert_prompts, model_costs

pytestmark = pytest.mark.slow

TINY = ModelConfig(name="vit_tiny", width=0.34)
CIFAR = (3, 32, 32)


def test_vit_tiny_is_timms() -> None:
    """Weights by position, then equal logits, at 224 px and patches of 16."""
    ours = build(ModelConfig(name="vit_tiny"), (3, 224, 224), 10, 0).eval()
    with torch.device("meta"):
        theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10).eval()
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)), assign=True)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


def test_starts_as_timms() -> None:
    """Truncated normals of std 0.02, zero biases, a class token next to zero."""
    model = build(ModelConfig(name="vit_tiny"), CIFAR, 10, 0)
    assert model.block_7.mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=2e-2)
    assert model.embed.pos_embed.std().item() == pytest.approx(0.02, rel=5e-2)
    assert model.embed.cls_token.abs().max() < 1e-4
    assert not model.head.fc.bias.any()


def test_sizes_of_vit_b16() -> None:
    """FedSGA's: 0.743 M + 7.088 M per block, 85.88 M in all; 0.116 G + 1.454 G multiply-accumulates."""
    costs = model_costs(ModelConfig(name="vit_b16"), (3, 224, 224), 100)
    embed, *blocks, head = costs
    assert embed.params == 768 * (3 * 16 * 16 + 1) + 768 + 197 * 768
    assert round(embed.params / 1e6, 3) == 0.743
    assert embed.flops == 2 * 196 * 768 * 768
    assert embed.flops / 2e9 == pytest.approx(0.116, rel=5e-3)
    for block in blocks:
        assert round(block.params / 1e6, 3) == 7.088
        # Four D x D and two D x 4D products for each token, and two attention products for each pair
        assert block.flops == 2 * (197 * 12 * 768**2 + 2 * 197**2 * 768)
        assert block.flops / 2e9 == pytest.approx(1.454, rel=5e-3)
        assert block.output_shape == (197, 768)
    assert len(blocks) == 12
    assert round(sum(cost.params for cost in costs) / 1e6, 2) == 85.88
    assert head.output_shape == (100,)


@pytest.mark.parametrize(
    ("sides", "patch", "tokens"),
    [
        ((32, 32), None, 65), ((28, 28), None, 50), ((64, 64), None, 65), ((224, 224), None, 197),
        ((12, 12), None, 37), ((32, 32), 16, 5), ((17, 30), 8, 13), ((96, 32), 4, 193),
    ],
)  # fmt: skip
def test_any_image_and_patch_size(sides: tuple[int, int], patch: int | None, tokens: int) -> None:
    """[B, 1 + patches, D], a last incomplete patch included."""
    config = ModelConfig(name="vit_tiny", width=0.34, patch_size=patch)
    model = build(config, (1, *sides), 10, 0)
    assert model.embed(torch.zeros(2, 1, *sides)).shape == (2, tokens, 64)
    assert model(torch.zeros(2, 1, *sides)).shape == (2, 10)


def test_the_edge_of_the_image_is_seen() -> None:
    model, x = build(TINY, (1, 30, 30), 10, 0).eval(), torch.zeros(1, 1, 30, 30)
    changed = x.clone()
    changed[..., -1, -1] = 1.0
    assert not torch.equal(model(x), model(changed))


def test_blocks() -> None:
    assert block_names(build(TINY, CIFAR, 10, 0)) == ["embed", *(f"block.{i}" for i in range(12)), "head"]


@pytest.mark.parametrize("after", ["embed", "block.2", "block.11"])
def test_prompts_go_behind_the_class_token(after: str) -> None:
    """Shallow VPT after the embedding, or before any block: [cls, prompts, patches], shared or per sample."""
    model = build(TINY, CIFAR, 10, 0)
    bottom, top = cut(model, after)
    tokens, prompts = bottom(torch.randn(2, *CIFAR)), torch.randn(4, 64, requires_grad=True)
    longer = insert_prompts(tokens, prompts)
    assert torch.equal(longer, torch.cat([tokens[:, :1], prompts.expand(2, 4, 64), tokens[:, 1:]], 1))
    assert torch.equal(longer, insert_prompts(tokens, prompts.expand(2, 4, 64)))
    top(longer).sum().backward()
    # The head reads no prompt, so that prompts before it alone change nothing.
    assert (prompts.grad is None or not prompts.grad.any()) == (after == "block.11")


@pytest.mark.parametrize("pool", ["cls", "mean", "mean_all"])
def test_no_prompts_is_the_plain_model(pool: str) -> None:
    model = build(ModelConfig(name="vit_tiny", width=0.34, pool=pool), CIFAR, 10, 0).eval()
    bottom, top = cut(model, "embed")
    x = torch.randn(2, *CIFAR)
    assert torch.equal(top(insert_prompts(bottom(x), torch.zeros(0, 64))), model(x))


@pytest.mark.parametrize(("pool", "blind"), [("cls", True), ("mean", True), ("mean_all", False)])
def test_what_the_head_pools(pool: str, blind: bool) -> None:
    """By hand from normalised tokens: the class token, its mean with the patches, the mean of all."""
    head = build(ModelConfig(name="vit_tiny", width=0.34, pool=pool), CIFAR, 10, 0).head
    tokens, prompts = torch.randn(2, 65, 64), torch.randn(3, 64)
    longer = insert_prompts(tokens, prompts)
    assert torch.equal(head(longer), head(tokens)) == blind
    normed = head.norm(longer)
    read = {"cls": [0], "mean": [0, *range(4, 68)], "mean_all": list(range(68))}[pool]
    assert torch.allclose(head(longer), head.fc(normed[:, read].mean(1)), atol=1e-6)
