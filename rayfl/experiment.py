"""One experiment: rounds, evaluation, checkpoints. The only loop over rounds."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rayfl import checkpoint, metrics, models, tree
from rayfl.blueprint import make_blueprint
from rayfl.config import ExperimentConfig
from rayfl.errors import PartyLost, RunFailed, UserError
from rayfl.fleet import Fleet, LocalFleet
from rayfl.host import Blueprint
from rayfl.ledger import Ledger
from rayfl.training import samples_seen, steps_per_epoch

_LOG = logging.getLogger("rayfl.experiment")


class Observer:
    """Is told how an experiment goes. Override what interests you."""

    def on_start(self, experiment: "Experiment") -> None:
        """Before the first round of this process."""

    def on_round(self, experiment: "Experiment", row: dict[str, float]) -> None:
        """After a round (0: before training), with its metrics; ``row["round"]`` is its number."""

    def on_end(self, experiment: "Experiment", result: "Result") -> None:
        """After the last round, or when the run stopped."""


@dataclass(frozen=True)
class Result:
    """What came out."""

    status: str
    """FINISHED, DIVERGED, FAILED or KILLED."""
    rounds: int
    """Rounds done."""
    metrics: dict[str, float]
    """The last round's metrics and the ``final/...`` summary."""
    history: list[dict[str, float]] = field(repr=False)
    """One row per round, from 0."""
    weights_sha256: str
    """Fingerprint of the global model."""
    cell_hash: str
    """Hash of the config."""
    partition_hash: str
    """Hash of who holds what."""
    run_id: str | None = None
    """The MLflow run, where there is one."""


def make_fleet(config: ExperimentConfig, blueprint: Blueprint) -> Fleet:
    """The fleet that the config asks for."""
    if config.fleet.kind == "local":
        if config.train.device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(
                f"train.device={config.train.device} needs a GPU, this process sees none: use cpu"
            )
        return LocalFleet(blueprint, config.fleet)
    from rayfl.actors.fleet import RayFleet

    return RayFleet(blueprint, config.fleet)


def check_fleet(config: ExperimentConfig) -> None:
    """Refuse a fleet that can't be had, before anything slow is started."""
    if config.fleet.kind == "ray":
        from rayfl.actors.fleet import check_here

        check_here(make_blueprint(config)[0], config.fleet)


class Experiment:
    """Steps through the rounds of one config."""

    def __init__(
        self,
        config: ExperimentConfig,
        make_fleet: Callable[[ExperimentConfig, Blueprint], Fleet] = make_fleet,
    ) -> None:
        self.config = config
        self.blueprint, self.data = make_blueprint(config)
        self.round = 0
        self.history: list[dict[str, float]] = []
        self.status = "RUNNING"
        self.stop_requested = False
        """Set, the rounds end after the one under way, with a checkpoint and a KeyboardInterrupt."""
        self.tables: metrics.Tables = {}
        """What the last evaluation found class by class and client by client."""
        self._dangerous = metrics.dangerous_classes(self.data.test, config.benign)
        self._client_costs = self._block_costs()
        self._saved: dict[str, Any] | None = None
        self._relaunches = 0
        self._warn()
        self._take_up(make_fleet(config, self.blueprint))

    def _take_up(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._final_weights: dict[str, torch.Tensor] | None = None
        self.algorithm = self.blueprint.algorithm(self.config.algorithm, self.fleet)
        self._evaluators = self.fleet.group("evaluator")

    @property
    def ledger(self) -> Ledger:
        """The bytes so far."""
        return self.fleet.ledger

    @property
    def personal(self) -> bool:
        """Whether scoring goes by clients."""
        return self.algorithm.is_personal(self.config.algorithm) or self.config.model.bn == "local"

    def _warn(self) -> None:
        facts, config = self.blueprint.facts, self.config.algorithm
        idle = [
            i for i, n in enumerate(facts.num_samples) if steps_per_epoch(config, n, facts.batch_norm) == 0
        ]
        if idle:
            _LOG.warning(
                "%d of %d clients hold too few samples for one batch and never take part: %s",
                len(idle), facts.num_clients, idle[:10],
            )  # fmt: skip
        if config.participation * facts.num_clients < 1:
            _LOG.warning(
                "participation=%g of %d clients is less than one: one client per round takes part",
                config.participation, facts.num_clients,
            )  # fmt: skip
        empty = sum(edge not in facts.client_edges for edge in range(facts.num_edges))
        if empty and "edge" in self.blueprint.algorithm.cast():
            _LOG.warning("%d of %d edge servers have no client", empty, facts.num_edges)
        if config.dropout_rate == 1:
            _LOG.warning("dropout_rate=1: no client ever takes part, the model stays as it is")
        if config.clip_norm is not None and "main" in self.blueprint.algorithm.cast():
            _LOG.warning("clip_norm clips each side by its own norm: the result depends on the cut")
        fleet, threads = self.config.fleet, self.config.train.threads
        if fleet.kind == "ray" and fleet.cpus_per_actor >= threads + 1:
            _LOG.warning(
                "of fleet.cpus_per_actor=%g an actor uses train.threads=%d: set train.threads=%d",
                fleet.cpus_per_actor, threads, fleet.cpus_per_actor,
            )  # fmt: skip

    def _block_costs(self) -> dict[str, tuple[int, int]]:
        """Parameters and FLOPs per sample of each block that clients hold; a method's own count none."""
        config, train = self.config, self.data.train
        held = self.blueprint.algorithm.cut(config.algorithm, self.blueprint.model())["client"]
        costs = models.model_costs(config.model, train.shape, train.num_classes)
        flops = {cost.name: cost.flops for cost in costs}
        return {
            name: (sum(p.numel() for p in block.parameters()), flops.get(name, 0))
            for name, block in zip(models.block_names(held), held, strict=True)
        }

    def step(self) -> dict[str, float]:
        """Evaluate before training, then run one round per call; the round's metrics come back."""
        first = not self.history
        diverged = ""
        if not first:
            self.round += 1
        row: dict[str, float] = {"round": self.round}
        started = time.perf_counter()
        self.fleet.begin_round(self.round)
        if not first:
            self.algorithm.round(self.round)
            self.fleet.settle()
            diverged = self._check_clients(row)
        row["wall/round_s"] = time.perf_counter() - started
        row.update(self.ledger.metrics(self.round))
        if not first:
            row.update(self.algorithm.report(self.round))
        row.update(self._work(first))
        last = self.round == self.config.rounds
        if first or last or diverged or self.round % self.config.eval_every == 0:
            started = time.perf_counter()
            row.update(self.evaluate())
            row["wall/eval_s"] = time.perf_counter() - started
        self.history.append(row)
        loss = row.get("global/test_loss", 0.0)
        if not diverged and not math.isfinite(loss):
            diverged = f"the test loss of round {self.round} is {loss}"
        if diverged:
            self.status = "DIVERGED"
            _LOG.warning("diverged: %s", diverged)
        elif last:
            self.status = "FINISHED"
        return row

    def _check_clients(self, row: dict[str, float]) -> str:
        """Count who was left out of the round; why the run has diverged, or nothing."""
        failed, not_finite = self.fleet.failed_clients, self.fleet.not_finite
        for reason in failed.values():
            _LOG.warning("a client was left out of the round: %s", reason)
        if failed:
            row["client/num_failed"] = float(len(failed))
        all_failed = bool(failed) and set(failed) >= set(self.algorithm.sample(self.round).ids)
        if not_finite and (all_failed or self.config.fleet.on_client_error == "stop"):
            client, what = min(not_finite.items())
            return f"client {client} sent {what}"
        if all_failed:
            raise RunFailed(
                f"all participants of round {self.round} failed, the first: {min(failed.items())[1]}"
            )
        return ""

    def _work(self, first: bool) -> dict[str, float]:
        facts, config = self.blueprint.facts, self.config.algorithm
        participants = self.algorithm.clients.only(()) if first else self.algorithm.sample(self.round)
        steps = self.algorithm.steps(participants, self.round)
        params, flops = [], []
        for i, n in steps.items():
            run = [self._client_costs[name] for name in self.algorithm.client_blocks(i) or self._client_costs]
            params.append(sum(cost[0] for cost in run))
            samples = samples_seen(config, facts.num_samples[i], n, facts.batch_norm)
            flops.append(3 * sum(cost[1] for cost in run) * samples)
        held = sum(cost[0] for cost in self._client_costs.values())
        return {
            "client/num_participants": float(len(participants)),
            "params/client": sum(params) / len(params) if params else float(held),
            "flops/client": sum(flops) / len(flops) if flops else 0.0,
        }

    def evaluate(self) -> dict[str, float]:
        """Score the present model on the test set, the validation rows and the clients' test rows."""
        with self.fleet.phase("evaluation"):
            if self.personal:
                shares = [1.0]
                parcels = [self.algorithm.clients.score(*self.algorithm.personal_model(self.round))]
            else:
                versions = self.algorithm.versions(self.round)
                shares = [share for share, _ in versions]
                parcels = [self._evaluators.score(*parts) for _, parts in versions]
            beside = self.algorithm.beside(self.round)
            self.fleet.settle()
            scores = [self.fleet.gather(parcel) for parcel in parcels]
            others = {name: self.fleet.gather(parcel) for name, parcel in beside.items()}
        of_models = metrics.of_personal_models if self.personal else metrics.of_global_model
        found = [of_models(each, self.data, self._dangerous) for each in scores]
        self.tables = found[shares.index(max(shares))][1]
        row = found[0][0]
        if len(found) > 1:
            pairs = list(zip(shares, [each for each, _ in found], strict=True))
            row = {name: sum(share * each[name] for share, each in pairs) for name in row}
        for name, each in others.items():
            row.update(metrics.of_models_beside(name, each, self.data, self._dangerous))
        return row

    def weights(self) -> dict[str, torch.Tensor]:
        """The global model: state-dict entries, those of personal parts named ``client<i>/...``."""
        if self._final_weights is not None:
            return self._final_weights
        merged: dict[str, torch.Tensor] = {}
        with self.fleet.phase("evaluation"):
            for parcel in self.algorithm.global_model(self.round):
                part = self.fleet.gather(parcel)
                for name, value in part.items():
                    if isinstance(name, int):
                        merged.update({f"client{name}/{key}": item for key, item in value.items()})
                    else:
                        merged[name] = value
        return merged

    def result(self, run_id: str | None = None) -> Result:
        """What there is to tell now."""
        last = dict(self.history[-1]) if self.history else {}
        return Result(
            status=self.status,
            rounds=self.round,
            metrics={**last, **metrics.final(self.history, self.config.targets)},
            history=self.history,
            weights_sha256=tree.sha256(self.weights()),
            cell_hash=self.config.cell_hash,
            partition_hash=self.data.partition.hash,
            run_id=run_id,
        )

    def run(self, folder: Path | None = None, observers: Sequence[Observer] = ()) -> Result:
        """Go on to the last round; checkpoints go to ``folder``."""
        for observer in observers:
            observer.on_start(self)
        for row in self.rounds(folder):
            for observer in observers:
                observer.on_round(self, row)
        result = self.result()
        for observer in observers:
            observer.on_end(self, result)
        return result

    def rounds(self, folder: Path | None = None) -> Iterator[dict[str, float]]:
        """The rows of the rounds still to do, with checkpoints. What is lost with an actor is done again."""
        while self.status == "RUNNING":
            try:
                if self.stop_requested and self.history:
                    self.checkpoint(folder)
                    raise KeyboardInterrupt(f"after round {self.round}")
                row = self.step()
                if self.status != "RUNNING":
                    self._final_weights = self.weights()
                elif self._checkpoint_due(row):
                    self.checkpoint(folder)
            except PartyLost as loss:
                self._recover(loss)
                continue
            yield row

    def _checkpoint_due(self, row: dict[str, float]) -> bool:
        # Who failed may not fail again, so a round without somebody is not left to be repeated.
        regular = self.round > 0 and self.round % self.config.checkpoint_every == 0
        return regular or "client/num_failed" in row

    def _recover(self, loss: PartyLost) -> None:
        """Relaunch, again if need be, as often as the config allows in all."""
        while True:
            self._relaunches += 1
            if self._relaunches > self.config.fleet.relaunches:
                raise loss
            _LOG.warning("%s; going back to the last checkpoint", loss)
            try:
                self.relaunch()
            except PartyLost as another:
                loss = another
            else:
                return

    def checkpoint(self, folder: Path | None) -> None:
        """Remember the state after this round, on disk where there is a folder."""
        self._saved = self.state_dict()
        if folder is not None:
            checkpoint.save(folder, self.round, self._saved)

    def relaunch(self) -> None:
        """Build the parties anew from the last remembered state."""
        self._take_up(self.fleet.relaunched())
        self.round, self.history, self.status = 0, [], "RUNNING"
        if self._saved is not None:
            self.load_state_dict(self._saved)

    def close(self) -> None:
        """Let go of the fleet."""
        self.fleet.close()

    def state_dict(self) -> dict[str, Any]:
        """All that the next rounds depend on: tensors and plain values."""
        parties: dict[str, dict[int, Any]] = {}
        for role in self.blueprint.algorithm.cast():
            group = self.fleet.group(role)
            states = self.fleet.gather(group.state_dict())
            states = {group.ids[0]: states} if len(group) == 1 and role in ("fed", "main") else states
            parties[role] = {index: state for index, state in states.items() if state}
        return {
            "cell_hash": self.config.cell_hash,
            "round": self.round,
            "history": [dict(row) for row in self.history],
            "parties": parties,
            "algorithm": dict(self.algorithm.state),
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, other_config: bool = False) -> None:
        """Go on from a stored state of the same config, or of another one whose parties have such states."""
        if state["cell_hash"] != self.config.cell_hash and not other_config:
            raise UserError(
                f"the checkpoint belongs to another config ({state['cell_hash']}, this is "
                f"{self.config.cell_hash}): start anew without --resume"
            )
        for role, states in state["parties"].items():
            group = self.fleet.group(role)
            for index, value in states.items():
                group.only([index]).load_state_dict(value)
        self.fleet.settle()
        self.round = state["round"]
        self.history = [dict(row) for row in state["history"]]
        self.algorithm.state = dict(state["algorithm"])
        self.ledger.load_state_dict(state["ledger"])
        self._saved = {**state, "cell_hash": self.config.cell_hash}
        if self.round >= self.config.rounds:
            self.status = "FINISHED"
