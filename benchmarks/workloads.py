"""The same FedAvg and SplitFed v1 work, as plain torch loops and as rayfl configs."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from rayfl import models
from rayfl.algorithms import ALGORITHMS
from rayfl.allocator import keep_freed_memory
from rayfl.blueprint import make_blueprint
from rayfl.config import ExperimentConfig, TrainConfig
from rayfl.data import DataConfig, SyntheticConfig
from rayfl.fleet import Fleet
from rayfl.host import Blueprint
from rayfl.models import ModelConfig
from rayfl.training import batches, steps_per_round

METHODS = ("fedavg", "splitfed_v1")


def small_cnn(method: str) -> ExperimentConfig:
    """Eight clients of 512 images of 28x28 and a CNN of 57 thousand parameters."""
    return _config(method, "cnn", clients=8, samples=512, channels=1, size=28)


def resnet18(
    method: str, clients: int = 4, samples: int = 32, train: TrainConfig | None = None
) -> ExperimentConfig:
    """Clients of 32x32 colour images and a ResNet-18 of 11 million parameters."""
    return _config(method, "resnet18", clients, samples, channels=3, size=32, train=train)


def _config(
    method: str,
    model: str,
    clients: int,
    samples: int,
    channels: int,
    size: int,
    train: TrainConfig | None = None,
) -> ExperimentConfig:
    return ExperimentConfig(
        algorithm=ALGORITHMS[method].Config(batch_size=32, lr=0.05),
        data=DataConfig(
            name="synthetic",
            num_clients=clients,
            val_fraction=0.0,
            synthetic=SyntheticConfig(
                num_train=clients * samples, num_test=64, channels=channels, height=size, width=size
            ),
        ),
        model=ModelConfig(name=model),
        train=train or TrainConfig(),
    )


class PlainLoop:
    """The round that a careful person would write in one file, for some of the clients."""

    def __init__(self, config: ExperimentConfig, clients: Sequence[int] | None = None) -> None:
        keep_freed_memory()
        self.plan: Blueprint = make_blueprint(config)[0]
        self.clients = clients if clients is not None else range(self.plan.facts.num_clients)
        self.dtype = torch.float64 if self.plan.dtype == "float64" else torch.float32
        self.model = self.plan.model().to(self.plan.device, self.dtype)
        self.split = config.algorithm.name != "fedavg"
        self.parts = models.cut(self.model, models.default_cut(self.model)) if self.split else (self.model,)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.t = 0

    def round(self) -> None:
        """Train every client from the average, then average."""
        self.t += 1
        sums: dict[str, Tensor] = {}
        total = 0
        for client in self.clients:
            self.model.load_state_dict(self.weights)
            self.model.train()
            optimizers = [torch.optim.SGD(part.parameters(), lr=self.plan.config.lr) for part in self.parts]
            for inputs, labels in self._batches(client):
                with self._autocast():
                    self._step(optimizers, inputs, labels)
            count = len(self.plan.client_rows[client])
            total += count
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    term = value.double() * count
                    sums[name] = sums[name].add_(term) if name in sums else term
                else:
                    sums[name] = torch.maximum(sums.get(name, value), value).clone()
        self.weights = {
            name: (value / total).to(self.weights[name].dtype) if value.is_floating_point() else value
            for name, value in sums.items()
        }

    def _autocast(self) -> torch.autocast:
        device = torch.device(self.plan.device).type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self.plan.dtype == "bfloat16")

    def _step(self, optimizers: list[torch.optim.SGD], inputs: Tensor, labels: Tensor) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        if self.split:
            smashed = self.parts[0](inputs)
            received = smashed.detach().requires_grad_()
            self._loss(self.parts[1](received), labels).backward()
            smashed.backward(received.grad)
        else:
            self._loss(self.model(inputs), labels).backward()
        for optimizer in optimizers:
            optimizer.step()

    @staticmethod
    def _loss(logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            logits.float() if logits.dtype == torch.bfloat16 else logits, labels
        )

    def _batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        plan, facts = self.plan, self.plan.facts
        rows = plan.client_rows[client]
        steps = steps_per_round(plan.config, len(rows), facts.batch_norm)
        for chosen in batches(plan.config, rows, steps, facts.batch_norm, facts.seed, self.t, client):
            yield plan.train.batch(chosen, self.dtype, plan.device)


class FleetRounds:
    """Rounds on a fleet, without evaluation."""

    def __init__(self, config: ExperimentConfig, make: Callable[[Blueprint], Fleet]) -> None:
        plan, _ = make_blueprint(config)
        self.fleet = make(plan)
        self.algorithm = plan.algorithm(config.algorithm, self.fleet)
        self.t = 0

    def round(self) -> None:
        """One round, waited for."""
        self.t += 1
        self.fleet.begin_round(self.t)
        self.algorithm.round(self.t)
        self.fleet.settle()

    def weights(self) -> dict[str, Tensor]:
        """The global model."""
        parts = [self.fleet.gather(part) for part in self.algorithm.global_model(self.t)]
        return {name: value for part in parts for name, value in part.items()}
