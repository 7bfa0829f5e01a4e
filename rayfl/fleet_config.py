"""How a fleet is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from rayfl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Where parties live. No choice here changes a bit of the result on CPU, unless a client is skipped."""

    kind: Literal["local", "ray"] = "local"
    """In this process, or in Ray actors."""
    client_actors: Annotated[int, Ge(1)] | None = None
    """Actors that share the clients; by default as many as CPUs (or GPU shares) allow."""
    clients_per_actor: Annotated[int, Ge(1)] | None = None
    """Clients per actor, instead of a number of actors; 1 gives each client its own."""
    placement: Literal["auto", "colocated", "separate"] = "auto"
    """Servers inside the client actors they serve, or in actors of their own; auto: colocated."""
    main_shards: Annotated[int, Ge(1)] | None = None
    """Shards of a main server that works per client, when separate; by default one per client actor."""
    cpus_per_actor: Annotated[float, Ge(0)] = 1.0
    """CPUs that each client actor reserves."""
    gpus_per_actor: Annotated[float, Ge(0)] = 0.0
    """GPU share that each client actor reserves: at most 1, or a whole number."""
    cpus_per_server: Annotated[float, Ge(0)] = 0.0
    """CPUs that each separate server actor reserves."""
    gpus_per_server: Annotated[float, Ge(0)] = 0.0
    """GPU share that each separate server actor reserves."""
    resources: Mapping[str, Annotated[float, Gt(0)]] = field(default_factory=dict)
    """Custom resources that each client actor reserves, e.g. {big_memory: 1}."""
    server_resources: Mapping[str, Annotated[float, Gt(0)]] = field(default_factory=dict)
    """Custom resources that each separate server actor reserves."""
    labels: tuple[str, ...] = ()
    """Labels of the nodes that client actors may use, e.g. [zone=a, ray.io/accelerator-type=A100]."""
    server_labels: tuple[str, ...] = ()
    """Labels of the nodes that separate server actors may use."""
    on_client_error: Literal["stop", "skip"] = "stop"
    """Whether a client's exception, or a NaN that it sends, stops the run or costs its part of the round."""
    client_timeout_s: Annotated[float, Gt(0)] | None = None
    """Longest time in seconds for one call of one client: a whole local training of FedAvg, one step of
    split learning. By default none: how long is too long depends on model, data and machine."""
    on_client_timeout: Literal["raise", "skip", "retry"] = "raise"
    """What a client that takes longer does: stop the run, miss the rest of the round, or send everybody back
    to the last checkpoint (which counts as a relaunch)."""
    relaunches: Annotated[int, Ge(0)] = 3
    """How often a run goes back to its last checkpoint after an actor died."""
    start_timeout_s: Annotated[float, Gt(0)] = 120.0
    """Seconds to wait for the actors to start, and for a lost node to come back if the rest lacks room."""

    def __post_init__(self) -> None:
        for key in ("resources", "server_resources"):
            for name in getattr(self, key):
                if name in _NOT_CUSTOM:
                    raise UserError(f"fleet.{key} is for custom resources, got {name}: {_NOT_CUSTOM[name]}")
        for key in ("labels", "server_labels"):
            labels_of(getattr(self, key), f"fleet.{key}")


_NOT_CUSTOM = {
    "CPU": "set fleet.cpus_per_actor or fleet.cpus_per_server",
    "GPU": "set fleet.gpus_per_actor or fleet.gpus_per_server",
    "memory": "give nodes with much memory a resource of their own, e.g. big_memory",
    "object_store_memory": "it is set where Ray is started",
}


def labels_of(texts: Sequence[str], where: str = "labels") -> dict[str, str]:
    """``["zone=a"]`` as a mapping."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UserError(f"{where} must be a list of key=value, got '{text}': write e.g. [zone=a]")
        labels[name] = value
    return labels
