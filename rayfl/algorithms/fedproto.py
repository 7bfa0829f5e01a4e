"""FedProto: clients keep their models to themselves and agree on a mean feature per class.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients",
AAAI 2022, https://arxiv.org/abs/2105.00243, Algorithm 1.

    fed --- C_j of all classes known so far --> client      once a round
    fed <-- C_kj of its own classes --- client              once a round

    client k minimises  CE + lambda 1/(b d) sum_i ||f(x_i) - C_{y_i}||^2 ,     f: all blocks but the last
    C_kj <- mean of f(x) over k's samples of class j ;   C_j <- mean of C_kj over the clients that sent one

Departs from the paper: the pull is on each sample's features, as in the authors' code, not on class means.
Prototypes count alike, as there too (``proto_weights: count`` goes by samples, whose numbers are then sent,
without the printed factor 1/|N_j|, which shrinks prototypes). A class that nobody sent keeps its prototype;
samples of a class without one are not pulled. Prototypes are taken after training, in evaluation mode
(``proto_mode: last_epoch``: on the way through the last epoch, as in the authors' code). Features are what
enters the backbone's last block: a ResNet's are maps. All clients have the same backbone. Clients are scored
by their own classifiers, every round (``predict: prototype``: by the nearest prototype of their own classes).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from rayfl import roles
from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.proto.prototypes import NearestPrototype, Prototypes, averaged
from rayfl.algorithms.splitfed_v3 import SplitFedV3
from rayfl.errors import UserError
from rayfl.evaluation import evaluate, whole
from rayfl.fleet import Parcel
from rayfl.host import Batch, Host, evaluating
from rayfl.models.blocks import Shape
from rayfl.moments import take
from rayfl.tasks import Score
from rayfl.training import Rows, TrainingConfig, steps_per_epoch

BODY, HEAD = slice(None, -1), slice(-1, None)


class FedProto(Algorithm):
    """Personal models, drawn together by prototypes alone."""

    @dataclass(frozen=True, kw_only=True)
    class Config(TrainingConfig):
        """FedProto's knobs."""

        name: str = "fedproto"
        lambda_proto: Annotated[float, Ge(0)] = 1.0
        """Strength lambda of the pull towards the prototypes."""
        proto_weights: Literal["uniform", "count"] = "uniform"
        """Whether the prototypes of a class count alike or by the samples behind them."""
        proto_mode: Literal["eval_pass", "last_epoch"] = "eval_pass"
        """Features of a prototype: of the trained model over all samples, or as the last epoch met them."""
        predict: Literal["head", "prototype"] = "head"
        """Score clients by their classifiers, or by the nearest prototype of the classes they hold."""

    class Client(SplitFedV3.Client):
        """Keeps a whole model from round to round; shows class means of its features."""

        def train_towards(self, prototypes: Prototypes, t: int) -> Prototypes:
            """A whole round of local training; the client's own prototypes after it."""
            self.start_round(t)
            self.targets = prototypes
            last_epoch = self.trained()
            if self.config.proto_mode == "last_epoch":
                found = take(last_epoch)
            else:
                for _ in last_epoch:
                    pass
                with evaluating(self.model):
                    found = take(self.passed())
            self.finish_round()
            means = {label: moments.mean for label, moments in found.items()}
            if self.config.proto_weights == "uniform":
                return Prototypes.of(means)
            return Prototypes.of(means, {label: moments.count for label, moments in found.items()})

        def trained(self) -> Iterator[tuple[Tensor, Tensor]]:
            """Train; the last epoch's features [b, *S] with labels [b], batch after batch."""
            assert self.learner is not None
            per_epoch = steps_per_epoch(self.config, len(self.rows), self.facts.batch_norm)
            for step, batch in enumerate(self.batches, start=1):
                self.loss(batch).backward()
                self.learner.step()
                if step > self.num_steps - per_epoch:
                    yield self.features, batch.labels

        def loss(self, batch: Batch) -> Tensor:
            assert self.learner is not None
            features = self.learner.forward(batch.inputs, BODY)
            loss = self.host.loss(self.learner.forward(features, HEAD), batch.labels)
            self.features = features.detach()
            pull: Tensor = self.config.lambda_proto * self.targets.pull(features, batch.labels)
            return loss + pull

        def passed(self) -> Iterator[tuple[Tensor, Tensor]]:
            """The features of all samples, with their labels as the dataset has them."""
            assert self.learner is not None
            size = self.config.batch_size
            for start in range(0, len(self.rows), size):
                rows = self.rows[start : start + size]
                inputs = self.host.batch(self.host.blueprint.train, rows).inputs
                yield self.learner.forward(inputs, BODY), torch.from_numpy(self.labels(rows))

        def labels(self, rows: Rows) -> Rows:
            """[n] labels, without the samples."""
            labels: Rows = self.host.blueprint.train.labels[rows]
            return labels

        def score(self, *parts: Any) -> tuple[Score, Score]:
            if self.config.predict == "head":
                return super().score()
            (prototypes,) = parts
            blueprint = self.host.blueprint
            held = set(self.labels(self.rows).tolist())
            nearest = NearestPrototype(prototypes, held, self.facts.num_classes)
            model = nn.Sequential(whole(self.host, [self.own])[BODY], nearest)
            everything = np.arange(len(blueprint.test), dtype=np.int64)
            return evaluate(self.host, model, blueprint.test, everything), evaluate(
                self.host, model, blueprint.test, blueprint.client_test_rows[self.id]
            )

    class FedServer(roles.FedServer):
        """Holds the latest prototype of each class; never gets weights."""

        def __init__(self, host: Host, index: int) -> None:
            super().__init__(host, index)
            self.known: dict[int, Tensor] = {}

        def prototypes(self) -> Prototypes:
            """Of all classes that were ever sent."""
            return Prototypes.of(self.known)

        def average(self, sent: Mapping[int, Prototypes]) -> None:
            """Renew the prototypes of the classes that some client sent."""
            self.known.update(averaged(sent, self.facts.num_clients))

        def state_dict(self) -> dict[str, Any]:
            return {"known": dict(self.known)}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.known = dict(state["known"])

    personal = True

    @classmethod
    def extended(cls, config: Config, model: nn.Sequential, shape: Shape, seed: int) -> nn.Sequential:
        if not any(isinstance(layer, nn.Linear) for layer in model[-1].modules()):
            raise UserError(
                "fedproto sends mean features by class of image, the model's last block has no linear "
                "classifier: take a dataset and a model for classification"
            )
        return model

    def round(self, t: int) -> None:
        clients = self.sample(t)
        self.fed.average(clients.train_towards(self.fed.prototypes(), t))

    def global_model(self, t: int) -> tuple[Parcel, ...]:
        return (self.clients.own_weights(),)

    def personal_model(self, t: int) -> tuple[Parcel, ...]:
        return (self.fed.prototypes(),) if self.config.predict == "prototype" else ()
