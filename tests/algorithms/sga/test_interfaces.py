"""The model that FedSGA trains: where prompts, signal and head sit, who holds what, what stays the same."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rayfl.algorithms.sga import extending, heads, interfaces
from rayfl.algorithms.sga.config import SGAConfig
from rayfl.algorithms.sga.harmoniser import Harmoniser, PlainHead, embedded, shallowest
from rayfl.algorithms.sga.interfaces import HEAD, PROMPTS, SIGNAL, Interfaces, Part
from rayfl.algorithms.sga.signals import Signal, pooled
from rayfl.errors import UserError
from rayfl.models import ModelConfig, block_names, build

pytestmark = pytest.mark.slow

SHAPE, Y = (3, 16, 16), 5
SMALL = {"resnet18": {"width": 0.125, "norm": "group"}, "vit_tiny": {"width": 0.34, "patch_size": 8}}


COSTS: dict[Any, Any] = {}


@pytest.fixture(autouse=True)
def costs_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's shapes are worked out once: that takes longer than all else here."""
    work_out = extending.models.block_costs

    def known(model: nn.Sequential, shape: tuple[int, ...]) -> Any:
        key = tuple(block_names(model)), shape
        if key not in COSTS:
            COSTS[key] = work_out(model, shape)
        return COSTS[key]

    monkeypatch.setattr(extending.models, "block_costs", known)


@functools.cache
def built(name: str, pool: str) -> nn.Sequential:
    return build(ModelConfig(name=name, pool=pool, **SMALL[name]), SHAPE, Y, 3).double().eval()  # type: ignore[arg-type]


def backbone(name: str = "resnet18", pool: str = "mean") -> nn.Sequential:
    """A copy of a narrow one, always with the same weights."""
    return copy.deepcopy(built(name, pool))


def extend(name: str, seed: int, pool: str = "mean", **options: Any) -> Interfaces:
    """What FedSGA makes of it."""
    config = SGAConfig(name="fedsga", **{"d_z": 7, "d_hid": 9, "d_e": 2, **options})
    return extending.extended(config, backbone(name, pool), SHAPE, seed).double().eval()


shared = functools.cache(extend)


def extended(name: str = "resnet18", **options: Any) -> Interfaces:
    """The same, as a copy of one that was made before, if any."""
    return copy.deepcopy(shared(name, 0, **options))


def images(count: int = 2) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, *SHAPE, dtype=torch.float64, generator=draw)


def at(model: nn.Sequential, depth: int) -> nn.Sequential:
    """The whole model for features that leave the client at a candidate."""
    model.get_buffer(f"{HEAD}.depth").fill_(depth)
    return model


def randomised(model: nn.Sequential) -> nn.Sequential:
    """Embeddings and prompts large enough to be seen."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("embedding", "tokens")):
                parameter.normal_(0.0, 1.0, generator=draw)
    return model


RESNET = ["layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0", "layer4.1"]
CANDIDATES = [
    ("resnet18", None, ["layer1.1", "layer2.1", "layer3.1"]),
    ("resnet18", ("layer1", "layer2.0", 6), ["layer1.1", "layer2.0", "layer3.0"]),
    ("resnet18", tuple(RESNET), RESNET),
    ("resnet18", tuple(range(2, 10)), RESNET),
    ("resnet18", ("stem", "layer4"), ["stem", "layer4.1"]),
    ("vit_tiny", None, ["block.2", "block.5", "block.8"]),
    ("vit_tiny", tuple(f"block.{i}" for i in range(12)), [f"block.{i}" for i in range(12)]),
]


@pytest.mark.parametrize(("name", "chosen", "expected"), CANDIDATES)
def test_candidates(name: str, chosen: Any, expected: list[str]) -> None:
    """By block, stage or number; by default after each of three quarters. Each is everything below it."""
    model = extended(name, candidates=chosen)
    found = interfaces.named(model)
    assert [one.name for one in found] == expected
    plain = block_names(backbone(name))
    for one, end in zip(found, model.ends, strict=True):
        assert list(one.blocks) == block_names(model)[:end]
        own = [block for block in one.blocks if block not in (PROMPTS, SIGNAL)]
        assert own == plain[: plain.index(one.name) + 1]
        assert {PROMPTS, SIGNAL} <= set(one.blocks)
    assert tuple(model(images()).shape) == (2, Y)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_places(name: str) -> None:
    """Prompts behind the first block, the signal last below p_1, the head on top; the rest as it was."""
    model, plain = extended(name), block_names(backbone(name))
    names = block_names(model)
    assert names[1] == PROMPTS
    assert names[model.ends[0] - 1] == SIGNAL
    assert [block for block in names if block not in (PROMPTS, SIGNAL)] == [*plain, HEAD]
    pad = block_names(extended("resnet18", cnn_prompt="pad"))
    assert pad[:2] == [PROMPTS, "stem"]


@pytest.mark.parametrize(
    "options", [{"num_prompts": 0}, {"cnn_prompt": "none"}, {"ablate": "adapt"}, {"ablate": "all"}]
)
def test_no_prompts(options: dict[str, Any]) -> None:
    assert PROMPTS not in block_names(extended("resnet18", **options))


def test_tokens_have_prompts_whatever_is_said_of_cnns() -> None:
    assert PROMPTS in block_names(extended("vit_tiny", cnn_prompt="none"))


@pytest.mark.parametrize(
    ("name", "pool"),
    [("resnet18", "mean"), ("vit_tiny", "cls"), ("vit_tiny", "mean"), ("vit_tiny", "mean_all")],
)
def test_without_its_modules_it_is_the_backbone(name: str, pool: str) -> None:
    """No prompts, plain head: equal logits, bit by bit, at any depth."""
    model, x = extended(name, pool=pool, ablate="all"), images()
    expected = backbone(name, pool)(x)
    for depth in (1, 2, 3):
        assert torch.equal(at(model, depth)(x), expected)


def test_silent_prompts_of_a_cnn_leave_the_backbone() -> None:
    model, x = extended(ablate="harmon"), images()
    before = model(x)
    with torch.no_grad():
        model.get_parameter(f"{PROMPTS}.tokens").zero_()
    assert torch.equal(model(x), backbone()(x))
    assert not torch.equal(before, model(x))


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_prompts_are_seen(name: str) -> None:
    """Their gradient reaches each, also where tokens are pooled without them."""
    model = randomised(extended(name))
    model(images()).square().sum().backward()
    gradient = model.get_parameter(f"{PROMPTS}.tokens").grad
    assert gradient is not None
    assert (gradient.abs().sum(1) > 0).all()


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_a_prefix_knows_nothing_of_what_is_above(name: str) -> None:
    """Other weights above p_k leave what goes out at p_k as it is, to the last bit."""
    model, x = randomised(extended(name)), images()
    for end in model.ends:
        before = model[:end](x)
        with torch.no_grad():
            for parameter in model[end:].parameters():
                parameter.add_(0.3)
        assert torch.equal(model[:end](x), before)


def split(parts: dict[str, nn.Sequential], x: Tensor, depth: int) -> Tensor:
    """The logits by way of both parties, cut at a candidate."""
    client, main = parts["client"], parts["main"]
    assert isinstance(client, Part)
    assert isinstance(main, Part)
    below = client[: client.ends[depth - 1]](x)
    z = main[main.ends[depth - 1] : -1](below)
    head = main[-1]
    assert isinstance(head, Harmoniser | PlainHead)
    logits: Tensor = head.classifier(head.embed(z, depth))
    return logits


MODELS = [("resnet18", "none"), ("resnet18", "harmon"), ("vit_tiny", "none")]


@pytest.mark.parametrize(("name", "ablate"), MODELS)
def test_parts(name: str, ablate: str) -> None:
    """Clients hold all up to p_K, the server all above p_1; from any depth it is the whole model."""
    model, x = randomised(extended(name, ablate=ablate)), images()
    parts, names = interfaces.parts(model), list(model._modules)
    assert list(parts["client"]._modules) == names[: model.ends[-1]]
    assert list(parts["main"]._modules) == names[model.ends[0] :]
    for depth in (1, 2, 3):
        assert torch.equal(split(parts, x, depth), at(model, depth)(x))


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_depth_enters_by_its_embedding_alone(name: str) -> None:
    """Copies that agree, embeddings of zero: the logits don't depend on the cut; with embeddings they do."""
    model, x = randomised(extended(name)), images()
    logits = [split(interfaces.parts(model), x, depth) for depth in (1, 2, 3)]
    assert not torch.allclose(logits[0], logits[1], rtol=0, atol=1e-3)
    with torch.no_grad():
        model.get_parameter(f"{HEAD}.embedding").zero_()
    logits = [split(interfaces.parts(model), x, depth) for depth in (1, 2, 3)]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize(("name", "ablate"), MODELS)
def test_server_without_a_body(name: str, ablate: str) -> None:
    """It ends at p_K: what the client puts out is pooled, brought to one size, and classified."""
    model, x = randomised(extended(name, server_body="none", ablate=ablate)), images()
    parts = interfaces.parts(model)
    client, main = parts["client"], parts["main"]
    assert list(client._modules) == list(model._modules)[:-1]
    assert list(main._modules) == [HEAD]
    assert interfaces.named(model)[-1].blocks == tuple(block_names(model)[:-1])
    head, signal = main[0], client.get_submodule(SIGNAL)
    assert isinstance(head, Harmoniser | PlainHead)
    assert isinstance(signal, Signal)
    widths = []
    for depth in (1, 2, 3):
        z = client[: model.ends[depth - 1]](x)
        assert signal.num_prompts == (4 if z.dim() == 3 else 0)
        h = pooled(z, signal.pool, signal.num_prompts)
        widths.append(h.shape[1])
        assert torch.equal(at(model, depth)(x), head.classifier(head.embed(h, depth)))
    inputs: Any = head.inputs
    assert [layer.in_features for layer in inputs] == widths
    assert all(
        layer.out_features == (9 if ablate == "none" else head.classifier.in_features) for layer in inputs
    )


def test_sizes_of_the_head() -> None:
    """As configured; without harmonising, the backbone's own last layer with its weights."""
    head = extended()[-1]
    assert isinstance(head, Harmoniser)
    assert (head.d_z, head.fc1.out_features, head.embedding.shape, head.classifier.out_features) == (
        7,
        9,
        (3, 2),
        Y,
    )
    plain = extended(ablate="harmon")[-1]
    assert isinstance(plain, PlainHead)
    assert torch.equal(plain.classifier.weight, backbone()[-1][-1].weight)
    projected = [extended(ablate=how).get_submodule(SIGNAL).fc.out_features for how in ("none", "harmon")]
    assert projected == [7, plain.classifier.in_features]


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_two_builds_are_the_same(name: str) -> None:
    """To the last bit, for whoever builds it; another seed gives other modules on the same backbone."""
    one, two, other = (extend(name, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[key], two[key]) for key in one)
    differ = {key.split(".")[0] for key in one if not torch.equal(one[key], other[key])}
    assert differ == {PROMPTS, SIGNAL, HEAD}


@pytest.mark.parametrize(
    ("phi_s", "learns", "factor"), [("learned", True, 10.0), ("fixed_random", False, 0.0)]
)
def test_projection_of_the_client(phi_s: str, learns: bool, factor: float) -> None:
    parameters = list(shared("resnet18", 0, phi_s=phi_s).get_submodule(SIGNAL).parameters())
    assert {p.requires_grad for p in parameters} == {learns}
    assert {p.lr_factor for p in parameters} == {factor}  # type: ignore[attr-defined]


def test_no_projection_of_the_client() -> None:
    """``reuse_phi``: the signal holds nothing; all the rest begins as with any other phi_s."""
    found, learned = (shared("vit_tiny", 0, phi_s=phi_s).state_dict() for phi_s in ("reuse_phi", "learned"))
    assert learned.keys() - found.keys() == {key for key in learned if key.startswith(f"{SIGNAL}.")}
    assert all(torch.equal(value, learned[key]) for key, value in found.items())


FITTING: list[tuple[str, dict[str, Any]]] = [
    ("vit_tiny", {}),
    ("vit_tiny", {"server_body": "none"}),
    ("resnet18", {"server_body": "none"}),
    ("resnet18", {"server_body": "none", "ablate": "harmon"}),
    ("resnet18", {"candidates": ("layer4.0", "layer4.1")}),
]


@pytest.mark.parametrize(("name", "options"), FITTING)
def test_the_servers_projector_fits(name: str, options: dict[str, Any]) -> None:
    """It takes what is pooled at p_1."""
    model, x = extended(name, phi_s="reuse_phi", **options), images()
    head, signal = model[-1], model.get_submodule(SIGNAL)
    assert isinstance(head, Harmoniser | PlainHead)
    assert isinstance(signal, Signal)
    below = signal.pooled(nn.Sequential(*model[: model.ends[0]])(x))
    assert tuple(embedded(head, shallowest(head.state_dict()), below).shape) == (2, head.d_z)


@pytest.mark.parametrize(
    ("options", "channels", "block"),
    [
        ({}, 8, "layer1.1"),
        ({"ablate": "harmon"}, 8, "layer1.1"),
        ({"candidates": ("layer3", "layer4.0")}, 32, "layer3.1"),
    ],
)
def test_the_servers_projector_does_not_fit(options: dict[str, Any], channels: int, block: str) -> None:
    """Refused with what it takes, what it would get, and what to do."""
    with pytest.raises(UserError, match=f"takes 64 channels, got {channels} from block '{block}'") as caught:
        extended("resnet18", phi_s="reuse_phi", **options)
    assert all(way in str(caught.value) for way in ("server_body=none", "candidates", "phi_s=learned"))
    assert "\n" not in str(caught.value)


def test_rates_survive_a_change_of_dtype() -> None:
    model = extend("resnet18", 0, prompt_lr_mult=0.5).float()
    assert model.get_parameter(f"{PROMPTS}.tokens").lr_factor == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_segments(name: str) -> None:
    """Between them they hold every entry of the client's part once, but for the prompts."""
    client = interfaces.parts(extended(name))["client"]
    assert isinstance(client, Part)
    found = [interfaces.segment(client, number) for number in (1, 2, 3)]
    together = [key for keys in found for key in keys]
    assert len(set(together)) == len(together)
    assert set(together) == {key for key in client.state_dict() if not key.startswith(PROMPTS)}
    for number, keys in enumerate(found, start=1):
        start = client.ends[number - 2] if number > 1 else 0
        blocks = set(list(client._modules)[start : client.ends[number - 1]]) - {PROMPTS}
        with_state = {name for name in blocks if client.get_submodule(name).state_dict()}
        assert {key.split(".")[0] for key in keys} == with_state
    assert any(key.startswith(SIGNAL) for key in found[0])


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny"])
def test_head_alone(name: str) -> None:
    """Other methods may take the head: the backbone's features, then FedSGA's projector for one depth."""
    model, plain, x = heads.with_harmoniser(backbone(name), 0).double().eval(), backbone(name), images()
    assert block_names(model) == [*block_names(plain), HEAD]
    assert getattr(model, "cuts", None) == getattr(plain, "cuts", None)
    head = model[-1]
    assert isinstance(head, Harmoniser)
    assert len(head.embedding) == 1
    seen: list[Tensor] = []
    linear = [layer for layer in plain[-1].modules() if isinstance(layer, nn.Linear)][-1]
    linear.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    plain(x)
    assert torch.equal(model(x), head(seen[0]))
    again = heads.with_harmoniser(backbone(name), 0).double()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("resnet18", {"candidates": ()}, "candidates is empty"),
    ("resnet18", {"candidates": ("layer9",)}, "no block is called 'layer9'"),
    ("resnet18", {"candidates": ("head",)}, "a block on both sides"),
    ("resnet18", {"candidates": (0, 3)}, "a block on both sides"),
    ("resnet18", {"candidates": ("layer2", "layer1")}, "must go up"),
    ("resnet18", {"candidates": ("layer1", "layer1.1")}, "must go up"),
    ("resnet18", {"p_ref": 4}, "p_ref=4 must be one of 3"),
    ("resnet18", {"candidates": ("layer1", "layer2"), "p_ref": 3}, "p_ref=3 must be one of 2"),
]


@pytest.mark.parametrize(("name", "options", "message"), MISTAKES)
def test_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        extended(name, **options)


def test_a_model_for_segmentation_is_refused() -> None:
    model = build(ModelConfig(name="resnet50_unet", width=0.125), (3, 32, 32), 2, 0)
    with pytest.raises(UserError, match="linear classifier"):
        extending.extended(SGAConfig(name="fedsga"), model, (3, 32, 32), 0)


class Two(nn.Module):
    """The same tensor twice."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Sum(nn.Module):
    """Of a pair."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


def test_a_tuple_at_a_cut_is_refused() -> None:
    """It can't be pooled; elsewhere it is no matter."""
    model = nn.Sequential(nn.Flatten(), Two(), Sum(), nn.Linear(4, Y))
    with pytest.raises(UserError, match="block '1' puts out several"):
        extending.extended(SGAConfig(name="fedsga", candidates=(1, 2)), model, (1, 2, 2), 0)
    model = nn.Sequential(nn.Flatten(), Two(), Sum(), nn.Linear(4, Y))
    found = extending.extended(SGAConfig(name="fedsga", candidates=(1, 3)), model, (1, 2, 2), 0)
    assert tuple(found(torch.zeros(2, 1, 2, 2)).shape) == (2, Y)
