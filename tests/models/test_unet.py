"""ResNet-50 U-Net: the library's network when all skips are on, and no cut through a skip."""

import pytest
import segmentation_models_pytorch as smp
import torch

from rayfl.errors import UserError
from rayfl.models import ModelConfig, block_names, build, cut, legal_cuts, model_costs

pytestmark = pytest.mark.slow

ENCODER = [
    "stem",
    *(f"layer{stage}.{i}" for stage, depth in enumerate((3, 4, 6, 3), 1) for i in range(depth)),
]


def make(**options: object) -> torch.nn.Sequential:
    config = ModelConfig(name="resnet50_unet", **{"width": 0.125, **options})  # type: ignore[arg-type]
    return build(config, (3, 64, 64), 2, 0)


def test_with_all_skips_it_is_the_librarys() -> None:
    """Same order of weights, so its state dict loads by position; then the logits must agree."""
    ours = make(width=1.0, skips=4).eval()
    with torch.device("meta"):
        theirs = smp.Unet("resnet50", encoder_weights=None, classes=2).eval()
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)), assign=True)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize(
    ("skips", "last"), [(0, "layer4.2"), (1, "layer3.5"), (2, "layer2.3"), (3, "layer1.2"), (4, "stem")]
)
def test_cuts_end_where_skips_begin(skips: int, last: str) -> None:
    model = make(skips=skips)
    assert legal_cuts(model) == ENCODER[: ENCODER.index(last) + 1]
    assert block_names(model)[-1] == "unet"


@pytest.mark.parametrize("skips", range(5))
def test_each_skip_adds_its_channels(skips: int) -> None:
    """The first convolution of a decoder block reads the upsampled map and, with a skip, the encoder's."""
    blocks = (
        make(width=1.0, skips=skips).unet.decoder.blocks
        if skips == 1
        else make(skips=skips).unet.decoder.blocks
    )
    scale = 1 if skips == 1 else 8
    below, encoder = (2048, 256, 128, 64, 32), (1024, 512, 256, 64, 0)
    for i, block in enumerate(blocks):
        assert block.conv1[0].in_channels == (below[i] + (encoder[i] if i < skips else 0)) // scale


def test_skips_reach_the_output() -> None:
    """Without its skip the deep features change, without any the output is another."""
    x = torch.randn(2, 3, 64, 64)
    outputs = []
    for skips in (0, 1, 2):
        model = make(skips=skips).eval()
        unet = model.unet
        features = model[:-1](x)
        outputs.append(unet(features))
        if skips:
            block = unet.decoder.blocks[skips - 1].conv1[0]
            block.weight.data[:, -features.shape[1] :] = 0
            assert not torch.equal(unet(features), outputs[-1])


@pytest.mark.parametrize("sides", [(32, 32), (40, 56), (33, 47)])
@pytest.mark.parametrize("skips", [0, 1, 4])
def test_logits_at_input_resolution(sides: tuple[int, int], skips: int) -> None:
    """Sides need not be multiples of 32."""
    model = build(ModelConfig(name="resnet50_unet", width=0.125, skips=skips), (1, *sides), 3, 0)
    assert model(torch.randn(2, 1, *sides)).shape == (2, 3, *sides)


@pytest.mark.parametrize("inside", ["layer4", "layer4.1", "layer4.0.conv2", "unet.decoder", "decoder"])
def test_no_cut_through_a_skip(inside: str) -> None:
    wanted = f"inside block 'unet', got '{inside}': cut after one of stem, .*layer3.5, or lower model.skips"
    with pytest.raises(UserError, match=wanted):
        cut(make(), inside)


def test_lowering_skips_opens_the_cut() -> None:
    below, above = cut(make(skips=0), "layer4")
    assert (block_names(below)[-1], block_names(above)) == ("layer4.2", ["unet"])


def test_costs() -> None:
    costs = model_costs(ModelConfig(name="resnet50_unet"), (3, 224, 224), 1)
    assert next(cost for cost in costs if cost.name == "layer3.5").output_shape == (1024, 14, 14)
    assert costs[-1].output_shape == (1, 224, 224)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_norm_holds_for_encoder_and_decoder(norm: str) -> None:
    kinds = {type(layer).__name__ for layer in make(norm=norm).modules()}
    assert kinds & {"BatchNorm2d", "GroupNorm"} == {"batch": {"BatchNorm2d"}, "group": {"GroupNorm"}}.get(
        norm, set()
    )
    assert not list(make(bn="batch_stats").buffers())
