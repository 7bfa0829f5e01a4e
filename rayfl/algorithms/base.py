"""What every method is made of: a cast of parties, a round, and what is scored at the end."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from rayfl import roles
from rayfl.fleet import Fleet, Group, Parcel
from rayfl.models.blocks import Shape
from rayfl.pictures import Picture
from rayfl.seeding import numpy_generator
from rayfl.training import TrainingConfig, steps_per_epoch, steps_per_round


class Algorithm:
    """A method: subclasses name their parties and write ``round`` as their paper does.

    In ``round``, calls on groups give parcels, which are passed on unopened; ``gather`` opens one.
    """

    Config: type[TrainingConfig] = TrainingConfig
    Client: type[roles.Client] = roles.Client
    FedServer: type[roles.FedServer] | None = roles.FedServer
    MainServer: type[roles.MainServer] | None = None
    EdgeServer: type[roles.EdgeServer] | None = None

    personal: ClassVar[bool] = False
    """Whether each client has its own version of the model, so that scoring goes by clients."""
    pictures: ClassVar[Mapping[str, Picture]] = {}
    """Drawn when a run ends, by name."""

    def __init__(self, config: Any, fleet: Fleet) -> None:
        self.config = config
        self.fleet = fleet
        self.facts = fleet.blueprint.facts
        self.clients = fleet.group("client")
        self.edges = fleet.group("edge")
        self.main = fleet.group("main")
        self.fed = fleet.group("fed")
        self.state: dict[str, int] = {}
        """Counters of the method itself that must survive a restart."""

    @classmethod
    def cast(cls) -> dict[str, type[roles.Role]]:
        """The classes of the parties by role."""
        parties = {"client": cls.Client, "edge": cls.EdgeServer, "main": cls.MainServer, "fed": cls.FedServer}
        return {role: party for role, party in parties.items() if party is not None}

    @classmethod
    def is_personal(cls, config: Any) -> bool:
        """Whether scoring goes by clients under this config: by default as ``personal`` says."""
        return cls.personal

    @classmethod
    def extended(cls, config: Any, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        """What the method makes of the backbone for images of ``shape``: by default it leaves it alone.

        A pure function of its arguments; called as a whole, the result is what is scored.
        """
        return model

    @classmethod
    def cut(cls, config: Any, model: nn.Sequential) -> dict[str, nn.Sequential]:
        """Who holds which blocks: by default clients hold all."""
        return {"client": model}

    def round(self, t: int) -> None:
        """The paper's loop body; rounds count from 1."""
        raise NotImplementedError

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        """The weights, part by part, that are scored after round ``t``."""
        return (self.fed.weights(),)

    def versions(self, t: int) -> list[tuple[float, tuple[Any, ...]]]:
        """The models that are scored after round ``t``, as their parts' weights, with shares of 1 in all."""
        return [(1.0, self.global_model(t))]

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        """What clients need to score their own versions of the model."""
        return self.global_model(t)

    def beside(self, t: int) -> Mapping[str, Parcel]:
        """What clients score beside the model after round ``t``, by the first part of its metrics' names.

        Pairs of scores on all test rows and on the client's own, as ``Client.score`` gives them; either may
        be of no rows.
        """
        return {}

    def client_blocks(self, client: int) -> Sequence[str] | None:
        """The blocks that a client ran in the last round; None for all that it holds."""
        return None

    def report(self, t: int) -> dict[str, float]:
        """The method's own figures of round ``t``; rows and MLflow get them."""
        return {}

    @classmethod
    def reported(cls, config: Any, model: nn.Sequential, num_clients: int, rounds: int) -> Iterable[str]:
        """The names of what :meth:`report` tells of some round, where ``model`` is the method's own."""
        return ()

    def sample(self, t: int) -> Group:
        """The participants of round ``t``: a pure function of (seed, t).

        ``max(floor(C N), 1)`` of the clients whose data make at least one batch, less those that drop out.
        """
        config, facts = self.config, self.facts
        able = [
            i for i in self.clients.ids if steps_per_epoch(config, facts.num_samples[i], facts.batch_norm)
        ]
        count = min(max(math.floor(config.participation * facts.num_clients + 1e-9), 1), len(able))
        if count == 0:
            return self.clients.only(())
        rng = numpy_generator(facts.seed, "participants", t)
        sizes = [facts.num_samples[i] for i in able]
        share = [size / sum(sizes) for size in sizes] if config.sampling == "by_size" else None
        chosen = rng.choice(able, size=count, replace=False, p=share)
        lost = numpy_generator(facts.seed, "dropout", t).random(facts.num_clients) < config.dropout_rate
        return self.clients.only(int(i) for i in chosen if not lost[i])

    def num_steps(self, client: int) -> int:
        """Local steps that a client's own data and the config amount to."""
        return steps_per_round(self.config, self.facts.num_samples[client], self.facts.batch_norm)

    def steps(self, clients: Group, t: int) -> dict[int, int]:
        """Local steps of each participant in round ``t``: by default as its own data have it."""
        return {i: self.num_steps(i) for i in clients.ids}

    def equal_steps(self, clients: Group) -> dict[int, int]:
        """The same number of steps for all: the participants' mean, rounded, and at least 1."""
        if self.config.local_steps is not None:
            return dict.fromkeys(clients.ids, self.config.local_steps)
        facts = self.facts
        each = [steps_per_epoch(self.config, facts.num_samples[i], facts.batch_norm) for i in clients.ids]
        mean = max(1, round(sum(each) / max(len(each), 1)))
        return dict.fromkeys(clients.ids, mean * self.config.local_epochs)

    def lockstep(self, clients: Group, steps: Mapping[int, int] | None = None) -> Iterator[Group]:
        """Step after step, the clients that still have one to make."""
        left = {i: self.num_steps(i) for i in clients.ids} if steps is None else steps
        for step in range(max(left.values(), default=0)):
            yield clients.only(i for i in clients.ids if left[i] > step)

    def gather(self, parcel: Parcel) -> Any:
        """Open a result: the only way for a method to look at one."""
        return self.fleet.gather(parcel)

    def scatter(self, values: Mapping[int, Any]) -> Parcel:
        """Values of the method's own, one per client."""
        return self.fleet.scatter(values)
