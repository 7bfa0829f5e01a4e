"""Slices: together they are the model, bit for bit, in values, gradients, names and state."""

import copy

import pytest
import torch
from samples import FAMILIES, NORMED, OTHERS, inputs, make, shared
from torch import nn

from rayfl.errors import UserError
from rayfl.models import block_names, cut, default_cut, default_cuts, join, legal_cuts

RESNET_BLOCKS = ["stem", *(f"layer{s}.{i}" for s in range(1, 5) for i in range(2)), "head"]
VARIANTS = [(name, "batch") for name in FAMILIES] + [
    (name, norm) for name in NORMED for norm in ("group", "none") if "50" not in name
]


def some_cuts(name: str) -> list[str]:
    """Every cut of a short model; the first, the middle and the last of a long one."""
    legal = legal_cuts(shared(name))
    return legal if len(legal) < 5 else [legal[0], legal[len(legal) // 2], legal[-1]]


def test_names() -> None:
    assert block_names(make("cnn")) == ["conv1", "conv2", "fc1", "head"]
    assert block_names(make("lenet")) == ["conv1", "conv2", "fc1", "fc2", "head"]
    assert block_names(make("mlp")) == ["fc1", "fc2", "head"]
    assert block_names(make("resnet18")) == RESNET_BLOCKS
    assert legal_cuts(make("resnet18")) == RESNET_BLOCKS[:-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_slices_are_the_whole(name: str) -> None:
    model = copy.deepcopy(shared(name)).eval()
    x = inputs(name)
    with torch.no_grad():
        expected = model(x)
        for after in some_cuts(name):
            bottom, top = cut(model, after)
            smashed = bottom(x)
            assert torch.equal(top(smashed), expected), after
            assert block_names(bottom)[-1] == after
            assert block_names(bottom) + block_names(top) == block_names(model)
            assert bottom.state_dict().keys().isdisjoint(top.state_dict())
            assert list(bottom.state_dict() | top.state_dict()) == list(model.state_dict())
            assert list(join(bottom, top).state_dict()) == list(model.state_dict())
            assert not any(part.training for part in (bottom, top, join(bottom, top)))
        assert torch.equal(join(bottom, top)(x), expected)


@pytest.mark.parametrize("name", OTHERS)
def test_slices_of_the_deeper_ones_are_the_whole(name: str) -> None:
    model, x = make(name).eval(), inputs(name)
    with torch.no_grad():
        for after in default_cuts(model, 2):
            bottom, top = cut(model, after)
            assert torch.equal(top(bottom(x)), model(x))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_split_step_has_the_gradients_of_the_whole(name: str, norm: str) -> None:
    """One process, no clone at the cut: an in-place layer on either side would show here."""
    model, x = shared(name, norm), inputs(name)
    whole = copy.deepcopy(model)
    logits = whole(x)
    direction = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(2))
    logits.backward(direction)
    for after in some_cuts(name):
        bottom, top = cut(copy.deepcopy(model), after)
        z = bottom(x)
        received = z.detach().requires_grad_()
        top(received).backward(direction)
        z.backward(received.grad)
        split = dict(bottom.named_parameters()) | dict(top.named_parameters())
        for key, parameter in whole.named_parameters():
            assert torch.equal(parameter.grad, split[key].grad), (after, key)


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_no_slice_writes_to_its_input(name: str, norm: str) -> None:
    """Each block by itself: wherever the cut falls, a slice begins with one of them."""
    x = inputs(name)
    for block in copy.deepcopy(shared(name, norm)):
        kept = x.clone()
        out = block(x)
        assert torch.equal(x, kept)
        assert out.data_ptr() != x.data_ptr()
        x = out.detach()


def test_slices_share_the_modules() -> None:
    model = make("cnn")
    bottom, top = cut(model, "conv2")
    assert bottom.conv1 is model.conv1
    assert join(bottom, top).head is model.head


def test_every_way_to_name_a_cut() -> None:
    model = make("resnet18")
    for after in ("layer1", "layer1.1", "layer1_1", 3):
        assert block_names(cut(model, after)[0]) == ["stem", "layer1.0", "layer1.1"]
    assert block_names(cut(model, "layer1.0")[0]) == ["stem", "layer1.0"]
    assert [len(part) for part in cut(model, "stem", "layer2", 7)] == [1, 4, 2, 3]
    assert [len(part) for part in cut(model)] == [10]


def test_a_slice_can_be_cut_again() -> None:
    _, top = cut(make("resnet18"), "layer1")
    edge, main = cut(top, "layer3")
    assert block_names(edge) == ["layer2.0", "layer2.1", "layer3.0", "layer3.1"]
    assert block_names(main) == ["layer4.0", "layer4.1", "head"]


def test_a_module_used_twice_keeps_both_places() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu)
    assert block_names(model) == ["0", "1", "2", "3"]
    bottom, top = cut(model, "1")
    assert block_names(top) == ["2", "3"]
    with pytest.raises(UserError, match="got '0' twice"):
        join(bottom, top, bottom)


def test_training_flags_stay_with_their_blocks() -> None:
    model = make("cnn")
    model.conv1.eval()
    bottom, top = cut(model, "conv1")
    assert bottom.training
    assert not bottom.conv1.training
    assert not join(bottom.eval(), top).training


def test_defaults() -> None:
    cnn, resnet, mlp = make("cnn"), make("resnet18"), make("mlp")
    assert default_cut(cnn) == "conv1"
    assert default_cut(resnet) == "layer1"
    assert default_cuts(cnn, 2) == ["conv1", "conv2"]
    assert default_cuts(resnet, 2) == ["layer1", "layer3"]
    assert default_cuts(mlp, 0) == []
    for model in (cnn, resnet, mlp):
        for n in range(len(model)):
            assert len(cut(model, *default_cuts(model, n))) == n + 1
    with pytest.raises(UserError, match="3 cuts can't be placed in a model of 3 blocks: ask for 0 to 2"):
        default_cuts(mlp, 3)


def test_defaults_of_models_that_know_better() -> None:
    """AlexNet is cut as in H-SFP, a ViT at FedSGA's quarters."""
    alexnet, vit = make("alexnet"), make("vit_tiny")
    assert (default_cut(alexnet), default_cuts(alexnet, 2)) == ("conv1", ["conv1", "conv5"])
    assert (default_cut(vit), default_cuts(vit, 3)) == ("block.2", ["block.2", "block.5", "block.8"])
    assert len(default_cuts(alexnet, 3)) == 3
    assert default_cut(make("resnet50_unet", skips=4)) == "stem"


@pytest.mark.parametrize(
    ("name", "inside", "block"),
    [
        ("resnet18", "layer1.0.conv1", "layer1.0"),
        ("resnet50", "layer4.2.downsample", None),
        ("vit_tiny", "block.3.attn", "block.3"),
        ("vit_tiny", "embed.patch_embed", "embed"),
        ("cnn", "conv1.0", "conv1"),
    ],
)
def test_no_cut_inside_a_block(name: str, inside: str, block: str | None) -> None:
    legal = ", ".join(legal_cuts(shared(name))[:2])
    wanted = (
        f"no block is called '{inside}': cut after one of {legal}"
        if block is None
        else f"inside block '{block}', got '{inside}': cut after one of {legal}"
    )
    with pytest.raises(UserError, match=wanted):
        cut(shared(name), inside)


def test_errors_say_what_to_do() -> None:
    cnn, resnet = make("cnn"), make("resnet18")
    with pytest.raises(UserError, match="no block is called 'convv1': cut after one of conv1, conv2, fc1"):
        cut(cnn, "convv1")
    with pytest.raises(UserError, match=r"no block is called 'layer9': cut after one of stem, layer1\.0"):
        cut(resnet, "layer9")
    with pytest.raises(UserError, match="no block is called 'True'"):
        cut(cnn, True)
    for empty in ("head", 0, 4, -1):
        with pytest.raises(UserError, match=f"both sides, got '{empty}': cut after one of conv1, conv2, fc1"):
            cut(cnn, empty)
    for order in (("conv2", "conv1"), ("conv1", "conv1"), ("conv1", 1)):
        with pytest.raises(UserError, match=r"must go up .* its order is conv1, conv2, fc1"):
            cut(cnn, *order)
    with pytest.raises(UserError, match="got 'conv1' twice"):
        join(cnn, cnn)
