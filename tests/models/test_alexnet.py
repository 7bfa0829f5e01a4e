"""AlexNet: H-SFP's published sizes for CIFAR, torchvision's network for large images."""

import torch
from torchvision.models import alexnet

from rayfl.models import ModelConfig, build, default_cuts, model_costs, part_costs


def test_cut_as_in_hsfp() -> None:
    """Weights and smashed data behind the paper's communication table: 3.83 "GB" and 68.67."""
    config = ModelConfig(name="alexnet", norm="none")
    cuts = default_cuts(build(config, (3, 32, 32), 10, 0), 2)
    client, edge, cloud = part_costs(model_costs(config, (3, 32, 32), 10), *cuts)
    assert (client.params, client.output_shape) == (1_792, (64, 16, 16))
    assert (edge.params, edge.output_shape) == (2_446_400, (256, 4, 4))
    assert cloud.params == 4096 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 10 + 10
    weights = 2 * 20 * 40 * client.params + 2 * 10 * 20 * edge.params
    assert round(4 * weights / 1e6 / 1024, 2) == 3.83
    visits = 900_000 * 4 / 2**30
    assert round(visits * (client.output_elements + 1) + visits * (edge.output_elements + 1), 2) == 68.67


def test_for_large_images_it_is_torchvisions() -> None:
    ours = build(ModelConfig(name="alexnet", norm="none"), (3, 224, 224), 10, 0).eval()
    with torch.device("meta"):
        theirs = alexnet(num_classes=10).eval()
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)), assign=True)
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
