"""The parties: plain Python objects with state and methods.

They know their data, their part of the model and the messages they get; nothing of Ray, files or layout.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rayfl import cutting, tree
from rayfl.cutting import Values
from rayfl.data.augment import augmentation
from rayfl.data.prefetch import Stream
from rayfl.evaluation import evaluate, whole
from rayfl.host import Batch, Host, Kept, Learner
from rayfl.messages import Gradient, PooledUpdate, SmashedBatch, Update, Weights
from rayfl.tasks import Score
from rayfl.training import Rows, batches, steps_per_round

Method = TypeVar("Method", bound=Callable[..., Any])


def per_client(method: Method) -> Method:
    """Mark a server method that answers clients: mappings keyed by client id in, the same out."""
    method.per_client = True  # type: ignore[attr-defined]
    return method


class Role:
    """A party of some role. ``role`` names it in links, errors and checkpoints."""

    role: ClassVar[str]

    def __init__(self, host: Host, index: int) -> None:
        self.host, self.id = host, index
        self.config: Any = host.config
        self.facts = host.facts

    def state_dict(self) -> dict[str, Any]:
        """What must survive from round to round: tensors and plain values. Empty by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a stored state."""


class Client(Role):
    """A client that trains a whole model, or the client-side part of one."""

    role = "client"

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.rows = host.blueprint.client_rows[index]
        self.kept = Kept()
        self.learner: Learner | None = None
        self.batches: Stream[Batch] = host.prefetcher.stream(())

    @property
    def model(self) -> nn.Sequential:
        """The module in training."""
        assert self.learner is not None, "no round is open"
        return self.learner.model

    def receive(self, weights: Weights, t: int, steps: int | None = None) -> None:
        """Open round ``t`` from ``weights``; ``steps`` local steps, or as many as the config says."""
        self.received = weights
        self.learner = Learner(self.host, "client", weights, t, self.kept)
        facts = self.facts
        if steps is None:
            steps = steps_per_round(self.config, len(self.rows), facts.batch_norm)
        self.num_steps = steps
        self.batches.close()
        self.batches = self._batches(t, steps)

    def _batches(self, t: int, steps: int) -> Stream[Batch]:
        host, facts, blueprint = self.host, self.facts, self.host.blueprint
        mine = self.training_rows(t)
        rows = batches(self.config, mine, steps, facts.batch_norm, facts.seed, t, self.id)
        return host.prefetcher.stream(
            functools.partial(
                host.batch,
                blueprint.train,
                chosen,
                augmentation(blueprint.augment, facts.seed, t, self.id, step),
            )
            for step, chosen in enumerate(rows)
        )

    def training_rows(self, t: int) -> Rows:
        """What round ``t`` trains on: by default all that the client has."""
        return self.rows

    def train(self, weights: Weights, t: int, steps: int | None = None) -> Update:
        """A whole round of local training."""
        self.receive(weights, t, steps)
        assert self.learner is not None
        for batch in self.batches:
            self.loss(batch).backward()
            self.learner.step()
        return self.update()

    def loss(self, batch: Batch) -> Tensor:
        """What a local step minimises: a scalar with graph."""
        assert self.learner is not None
        return self.host.loss(self.learner.forward(batch.inputs), batch.labels)

    def update(self) -> Update:
        """Close the round and hand over the weights; after no step at all there is nothing to hand over."""
        assert self.learner is not None
        self.batches.close()
        update = Update({}, 0.0)
        if self.num_steps:
            update = Update(self.learner.weights(), self.config.mass(len(self.rows)))
        self.kept = self.learner.close()
        self.learner = None
        return update

    def present(self) -> None:
        """Be counted among those that got through the round."""

    def abandon(self) -> None:
        """Break off the round; nothing of it is kept."""
        self.batches.close()
        if self.learner is not None:
            self.learner.close()
            self.learner = None

    def score(self, *parts: Weights) -> tuple[Score, Score]:
        """How this client's own version of the model does on the whole test set and on its own test rows."""
        model = whole(self.host, [{**parts[0], **self.kept.buffers}, *parts[1:]])
        test = self.host.blueprint.test
        everything = np.arange(len(test), dtype=np.int64)
        return evaluate(self.host, model, test, everything), evaluate(
            self.host, model, test, self.host.blueprint.client_test_rows[self.id]
        )

    def state_dict(self) -> dict[str, Any]:
        return self.kept.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = Kept(**state)


class SplitClient(Client):
    """A client that holds the blocks up to the cut layer and trains them by answers from above."""

    def forward(self) -> SmashedBatch:
        """The smashed data of the next batch."""
        assert self.learner is not None
        batch = next(self.batches)
        self.output = self.learner.forward(batch.inputs)
        return SmashedBatch(cutting.detached(self.output), batch.labels)

    def backward(self, gradient: Gradient) -> None:
        """Carry the gradient at the cut through the client-side part and step."""
        assert self.learner is not None
        cutting.backward(self.output, gradient.values)
        self.learner.step()


class FedServer(Role):
    """Holds the average of what clients hold."""

    role = "fed"
    part: ClassVar[str] = "client"

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.current: Weights = host.initial(self.part)

    def weights(self) -> Weights:
        """The present average."""
        return self.current

    def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
        """Replace the weights by the mean of the updates; without any, they stay."""
        mean = tree.weighted_mean(updates, self.facts.num_clients)
        if mean is not None:
            self.current = {**self.current, **mean.weights}

    def state_dict(self) -> dict[str, Any]:
        return {"current": dict(self.current)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.current = state["current"]


class MainServer(Role):
    """Holds the one server-side model (scope ``joint``), which steps as its subclass says."""

    role = "main"
    scope: ClassVar[str] = "joint"

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.current: Weights = host.initial("main")
        self.kept = Kept()
        self.learner: Learner | None = None

    def start_round(self, t: int) -> None:
        """Take up training."""
        self.learner = Learner(self.host, "main", self.current, t, self.kept)

    def learn(self, learner: Learner, batch: SmashedBatch) -> Gradient:
        """The atomic split step: loss, gradient at the cut, server step."""
        if self.config.reset_optimizer == "per_batch":
            learner.renew_optimizer()
        gradient = self.backpropagate(learner, batch)
        learner.step()
        return gradient

    def backpropagate(self, learner: Learner, batch: SmashedBatch, share: float = 1.0) -> Gradient:
        """Add ``share`` times the batch's gradient to the model's; return the whole gradient at the cut."""
        inputs = cutting.entering(batch.activations)
        loss = self.host.loss(learner.forward(inputs), batch.labels)
        loss.backward(torch.full_like(loss, share))
        return self.answer(inputs, share)

    @staticmethod
    def answer(inputs: Values, share: float) -> Gradient:
        """The whole gradient at the cut, of which ``share`` has reached the received ``inputs``."""
        gradients = cutting.gradients(inputs)
        return Gradient(gradients if share == 1.0 else cutting.each(lambda g: g / share, gradients))

    def finish_round(self) -> None:
        """Lay training down until the next round."""
        assert self.learner is not None
        self.current = {**self.current, **self.learner.weights()}
        self.kept = self.learner.close()
        if self.kept.buffers:
            self.current = {**self.current, **self.kept.buffers}
        self.learner = None

    def weights(self) -> Weights:
        """The server-side model between rounds."""
        return self.current

    def state_dict(self) -> dict[str, Any]:
        return {"current": dict(self.current), **self.kept.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.current = state["current"]
        self.kept = Kept(**{key: value for key, value in state.items() if key != "current"})


class ReplicaServer(MainServer):
    """A main server with one replica of the server-side model per client (scope ``per_client``).

    May be sharded over hosts; shard 0, the root, holds the average between rounds.
    """

    scope = "per_client"

    def __init__(self, host: Host, index: int) -> None:
        super().__init__(host, index)
        self.replicas: dict[int, Learner] = {}
        self.kept_by_client: dict[int, Kept] = {}

    def receive(self, weights: Weights, t: int) -> None:
        """Open round ``t``: replicas are made from ``weights`` as clients show up."""
        for left_over in self.replicas.values():
            left_over.close()
        self.replicas, self.received, self.t = {}, weights, t

    @per_client
    def train_step(self, smashed: Mapping[int, SmashedBatch]) -> dict[int, Gradient]:
        """One step of each client's own replica."""
        return {client: self.learn(self._replica(client), batch) for client, batch in smashed.items()}

    def _replica(self, client: int) -> Learner:
        if client not in self.replicas:
            kept = self.kept_by_client.get(client)
            self.replicas[client] = Learner(self.host, "main", self.received, self.t, kept)
        return self.replicas[client]

    @per_client
    def updates(self, present: Mapping[int, None]) -> dict[int, Update]:
        """Close the round: the replicas of the clients that got through it, weighted like the clients."""
        result = {}
        for client in sorted(self.replicas.keys() & present):
            learner = self.replicas.pop(client)
            result[client] = Update(learner.weights(), self.config.mass(self.facts.num_samples[client]))
            kept = learner.close()
            if kept.state_dict():
                self.kept_by_client[client] = kept
        return result

    def aggregate(self, updates: Mapping[int, Update | PooledUpdate]) -> None:
        """Replace the root's model by the mean of the replicas; without any, it stays."""
        mean = tree.weighted_mean(updates, self.facts.num_clients)
        if mean is not None:
            self.current = {**self.current, **mean.weights}

    @per_client
    def personal_weights(self, clients: Mapping[int, None], weights: Weights) -> dict[int, Weights]:
        """The server-side model as each client would meet it: with the statistics kept for it."""
        none = Kept()
        return {client: {**weights, **self.kept_by_client.get(client, none).buffers} for client in clients}

    def state_dict(self) -> dict[str, Any]:
        kept = {client: kept.state_dict() for client, kept in self.kept_by_client.items()}
        return {**super().state_dict(), **({"kept_by_client": kept} if kept else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        self.kept_by_client = {
            client: Kept(**kept) for client, kept in rest.pop("kept_by_client", {}).items()
        }
        super().load_state_dict(rest)


class EdgeServer(Role):
    """Stands between the cloud and its own clients."""

    role = "edge"


class Evaluator(Role):
    """Scores a fixed slice of the test and validation rows, wherever it lives."""

    role = "evaluator"

    def score(self, *parts: Weights) -> tuple[Score, Score]:
        """The global model on this slice of the test set and of the validation rows."""
        blueprint = self.host.blueprint
        model = whole(self.host, parts)
        return (
            evaluate(self.host, model, blueprint.test, self._slice(np.arange(len(blueprint.test)))),
            evaluate(self.host, model, blueprint.train, self._slice(blueprint.validation_rows)),
        )

    def _slice(self, rows: Rows) -> Rows:
        return np.array_split(rows, tree.NUM_BLOCKS)[self.id]
