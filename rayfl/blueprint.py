"""From a config to what every process of an experiment needs: divided data, a model, facts."""

import functools
from collections.abc import Callable

from torch import nn

from rayfl import algorithms, data, models, weights
from rayfl.config import ExperimentConfig
from rayfl.data import augment, displacement
from rayfl.errors import UserError
from rayfl.host import Blueprint, Facts
from rayfl.models.blocks import Shape
from rayfl.tasks import TASKS
from rayfl.training import TrainingConfig


def make_blueprint(config: ExperimentConfig) -> tuple[Blueprint, data.FederatedData]:
    """Open the data and lay down what every process needs."""
    federated = data.load(config.data, config.seed)
    train = federated.train
    backbone = functools.partial(weights.build, config.model, train.shape, train.num_classes, config.seed)
    return lay_down(config, federated, extended(config, train.shape, backbone)), federated


def extended(
    config: ExperimentConfig, shape: Shape, backbone: Callable[[], nn.Sequential]
) -> Callable[[], nn.Sequential]:
    """Builds what the method makes of the backbone."""
    method = algorithms.find(config.algorithm.name)
    return functools.partial(extend, method, config.algorithm, shape, config.seed, backbone)


def extend(
    method: type[algorithms.Algorithm],
    config: TrainingConfig,
    shape: Shape,
    seed: int,
    backbone: Callable[[], nn.Sequential],
) -> nn.Sequential:
    """The model that a method trains."""
    return method.extended(config, backbone(), shape, seed)


def lay_down(
    config: ExperimentConfig, federated: data.FederatedData, factory: Callable[[], nn.Sequential]
) -> Blueprint:
    """What every process needs, of divided data and a model; checks what can be checked before a start."""
    method = algorithms.find(config.algorithm.name)
    train = federated.train
    whole = factory()
    batch_norm = models.has_batch_norm(whole)
    if batch_norm and config.algorithm.batch_size == 1:
        raise UserError("batch_size=1 can't train BatchNorm, got model.norm=batch: use model.norm=group")
    method.cut(config.algorithm, whole)
    _check_outputs(config, train)
    augment.check(config.data.augment, train.shape)
    displacement.check(config.data.displacement, train.shape)
    facts = Facts(
        seed=config.seed,
        num_samples=tuple(len(rows) for rows in federated.client_indices),
        client_edges=federated.client_edges,
        num_edges=config.data.num_edges,
        num_classes=train.num_classes,
        batch_norm=batch_norm,
        task=train.task,
    )
    return Blueprint(
        algorithm=method,
        config=config.algorithm,
        facts=facts,
        model=factory,
        train=train,
        test=federated.test,
        client_rows=federated.client_indices,
        client_test_rows=federated.client_test_indices,
        validation_rows=federated.validation_indices,
        bn=config.model.bn,
        dtype=config.train.dtype,
        device=config.train.device,
        threads=config.train.threads,
        deterministic=config.train.deterministic,
        augment=config.data.augment,
        prefetch=_prefetch(config.data, train),
    )


def _check_outputs(config: ExperimentConfig, train: data.Dataset) -> None:
    wanted = TASKS[train.task].output_shape(train.num_classes, train.shape)
    got = models.model_costs(config.model, train.shape, train.num_classes)[-1].output_shape
    if got != wanted:
        raise UserError(
            f"{train.task} on {train.name} needs a model with outputs {wanted}, got {got} from "
            f"model.name={config.model.name}: choose one with rayfl list models"
        )


def _prefetch(config: data.DataConfig, train: data.Dataset) -> int:
    """Threads that make batches ahead: small images in memory are quicker sliced than handed over."""
    if config.prefetch is not None:
        return config.prefetch
    return 2 if train.encoded else 0
