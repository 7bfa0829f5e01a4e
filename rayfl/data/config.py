"""What can be asked of the data: which set, over how many clients, divided by which law."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Kind = Literal[
    "iid",
    "dirichlet",
    "shards",
    "pathological",
    "dominant",
    "quantity",
    "domain",
    "natural",
    "two_level",
    "file",
]
AugmentKind = Literal["none", "crop_flip", "shift", "supcon", "randaugment"]
Scheme = Literal["niid_bench", "per_class", "per_client", "hsu"]
EdgeMap = Literal["blocks", "random", "label_similar", "label_diverse", "domain"]


@dataclass(frozen=True, kw_only=True)
class PartitionConfig:
    """How training samples are divided over clients."""

    kind: Kind = "iid"
    """The law: see ``rayfl.data.SCHEMES``."""
    scheme: Scheme = "niid_bench"
    """Which of the four things called "Dirichlet" is meant (kinds dirichlet, two_level, domain)."""
    alpha: Annotated[float, Gt(0)] = 0.5
    """Concentration: small is skewed, large is even (kinds dirichlet, quantity, two_level, domain)."""
    alpha_edge: Annotated[float, Gt(0)] = 0.5
    """Concentration over edge servers; ``alpha`` is that over the clients of each (kind two_level)."""
    within: Literal["iid", "dirichlet"] = "iid"
    """How a domain's samples are divided over its clients (kind domain)."""
    natural_by: Literal["group", "domain"] = "group"
    """What stays whole: groups (patients, writers) or domains (sites, cameras) (kind natural)."""
    dominant_ratio: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of a client's samples that are of its dominant class (kind dominant)."""
    min_size: Annotated[int, Ge(0)] = 10
    """Samples that every client must hold; 0 allows empty clients."""
    max_tries: Annotated[int, Ge(1)] = 1000
    """Draws before giving up on ``min_size``."""
    on_small: Literal["error", "repair"] = "error"
    """After ``max_tries``: refuse, or move samples from the largest clients to those below ``min_size``."""
    shards_per_client: Annotated[int, Ge(1)] = 2
    """Label-sorted shards that a client gets (kind shards)."""
    classes_per_client: Annotated[int, Ge(1)] = 2
    """Classes that a client holds (kind pathological)."""
    quantity_law: Literal["dirichlet", "lognormal"] = "dirichlet"
    """The law of client sizes (kind quantity)."""
    sigma: Annotated[float, Ge(0)] = 1.0
    """Standard deviation of the log of a client's size (kind quantity, law lognormal)."""
    path: str | None = None
    """The ``.npz`` file written by ``rayfl partition --save`` (kind file)."""
    file_hash: str | None = None
    """Fingerprint of what the file holds, filled in when a config is loaded (kind file)."""


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """The generated set ``synthetic``; its content follows from these options alone, never from the seed."""

    num_train: Annotated[int, Ge(1)] = 2000
    """Training images."""
    num_test: Annotated[int, Ge(1)] = 500
    """Test images."""
    num_classes: Annotated[int, Ge(2)] = 10
    """Classes, as even as the counts allow."""
    channels: Annotated[int, Ge(1)] = 1
    """Image channels."""
    height: Annotated[int, Ge(1)] = 28
    """Image height in pixels."""
    width: Annotated[int, Ge(1)] = 28
    """Image width in pixels."""
    noise: Annotated[float, Ge(0)] = 1.0
    """Standard deviation of the pixel noise, in units of the class template's own deviation."""
    num_domains: Annotated[int, Ge(1)] = 1
    """Domains (sites, cameras); above 1 each sample carries a domain number."""
    domain_shift: Annotated[float, Ge(0)] = 0.5
    """Size of a domain's own contrast, brightness and pattern; 0 makes domains alike."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A dataset divided over clients and edge servers."""

    name: str = "mnist5k"
    """The dataset: see ``rayfl data list``; also the name that own files were prepared under."""
    num_clients: Annotated[int, Ge(1)] = 10
    """Clients."""
    num_edges: Annotated[int, Ge(1)] = 2
    """Edge servers."""
    edge_map: EdgeMap = "blocks"
    """Which clients an edge server serves: see ``rayfl.data.EDGE_MAPS``. Kind two_level brings its own. Of
    these ``random`` alone depends on the seed, beyond the partition."""
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    """How training samples are divided over clients."""
    val_fraction: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of the training set held out for validation, evenly by class, before clients get theirs."""
    root: str | None = None
    """Folder of prepared datasets; default: the environment's RAYFL_DATA, else ~/.cache/rayfl."""
    source: str | None = None
    """The official or own files that the dataset is prepared from, where it isn't bundled or downloaded."""
    image_size: Annotated[int, Ge(1)] | None = None
    """Side in pixels that images are resized to when read; default: as stored, or 224 for photographs."""
    displacement: Annotated[int, Ge(0)] = 0
    """Pixels by which every image, of training and of test, is moved at most, up or down and left or right;
    what comes in is black. Each image is moved once and for all, in the same way under every method, seed
    and fleet: another dataset, whose content has no fixed place. Not ``augment: shift``, which moves training
    images anew in every step. Masks go along; sizes, labels and partitions stay as they are."""
    on_unreadable: Literal["raise", "skip"] = "raise"
    """What a preparation does with an image that can't be read: stop, or leave it out and list it."""
    augment: AugmentKind = "none"
    """Random changes to training batches, never to what is scored: see ``rayfl.data.augment``.

    ``supcon`` doubles every batch: two views of each sample, all first views, then all second ones. Each
    method with each client then trains on 2b rows at a time: smashed data, labels and gradients at the cut
    weigh twice as much in the ledger and client work is twice what ``flops/client`` says, while steps per
    epoch, ``num_samples`` and shares of an average go on counting samples."""
    prefetch: Annotated[int, Ge(0)] | None = None
    """Threads per process that make training batches ahead; default: 2 for images that are decoded when read,
    else none. At most ``max(2 * prefetch, 8)`` batches lie ready in a process, however many clients it hosts.
    No bit depends on it."""
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    """Options of the dataset named synthetic."""
