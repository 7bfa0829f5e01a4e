"""What can be asked of the data: which set, over how many clients, divided by which law."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

Kind = Literal["iid", "dirichlet", "shards", "pathological", "quantity", "file"]
Scheme = Literal["niid_bench", "per_class", "per_client", "hsu"]


@dataclass(frozen=True, kw_only=True)
class PartitionConfig:
    """How training samples are divided over clients."""

    kind: Kind = "iid"
    """The law: see ``rayfl.data.SCHEMES``."""
    scheme: Scheme = "niid_bench"
    """Which of the four things called "Dirichlet" is meant (kind dirichlet)."""
    alpha: Annotated[float, Gt(0)] = 0.5
    """Concentration: small is skewed, large is even (kinds dirichlet and quantity)."""
    min_size: Annotated[int, Ge(0)] = 10
    """Samples that every client must hold; 0 allows empty clients."""
    max_tries: Annotated[int, Ge(1)] = 1000
    """Draws before giving up on ``min_size`` (kinds dirichlet and quantity)."""
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
    """The dataset: see ``rayfl.data.DATASETS``."""
    num_clients: Annotated[int, Ge(1)] = 10
    """Clients."""
    num_edges: Annotated[int, Ge(1)] = 2
    """Edge servers, each serving one contiguous block of clients."""
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    """How training samples are divided over clients."""
    val_fraction: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of the training set held out for validation, evenly by class, before clients get theirs."""
    root: str | None = None
    """Folder of prepared datasets; default: the environment's RAYFL_DATA, else ~/.cache/rayfl."""
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    """Options of the dataset named synthetic."""
