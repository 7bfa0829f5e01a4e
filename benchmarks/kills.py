"""Actors killed with SIGKILL at random moments: is the result the one of an undisturbed run, to the bit?

    python -m benchmarks.kills [--kills 50] [--seed 0] [--replace-all] [--json]

Method, victim and moment of each kill are drawn from the seed. Servers have actors of their own. A run of a
LocalFleet, which nobody disturbs, says what must come out: weights, and all numbers of all rounds but times.
``--replace-all`` starts all actors anew after each loss, as if none could be kept.
"""

import argparse
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from rayfl.actors.fleet import ActorPool, RayFleet, ensure_ray
from rayfl.algorithms import ALGORITHMS
from rayfl.config import ExperimentConfig
from rayfl.data import DataConfig
from rayfl.experiment import Experiment, Result
from rayfl.fleet import Group, Parcel
from rayfl.fleet_config import FleetConfig
from rayfl.host import Blueprint
from rayfl.models import ModelConfig
from rayfl.seeding import numpy_generator

ROLES = ("client", "edge", "main", "fed")
LATEST_S = 0.2
"""A kill comes at most so long after the call that it is tied to."""


@dataclass(frozen=True)
class Kill:
    """Who dies when."""

    method: str
    role: str
    """The first actor of this role dies, or the last one."""
    first: bool
    call: int
    """After so many calls of the driver, counted from the start of the run, ..."""
    delay_s: float
    """... and so many seconds more."""


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    kill: Kill
    round: int
    """The round in which it struck."""
    recoveries: int
    identical: bool
    recovery_s: float
    """Until the parties were back at the last checkpoint."""


class Doomed(RayFleet):
    """A fleet that loses one actor."""

    def __init__(self, plan: Blueprint, config: FleetConfig, pool: ActorPool, kill: Kill) -> None:
        super().__init__(plan, config, pool)
        self._kill, self.calls, self.struck_in = kill, 0, -1
        ids = self.layout.ids(kill.role)
        self._victim = self.pids[self.layout.home[kill.role, ids[0] if kill.first else ids[-1]]]

    def _call(self, group: Group, method: str, arguments: tuple[Any, ...]) -> Parcel:
        self.calls += 1
        if self.calls == self._kill.call:
            self.struck_in = self._t
            timer = threading.Timer(self._kill.delay_s, os.kill, (self._victim, signal.SIGKILL))
            timer.start()
        return super()._call(group, method, arguments)


def config(method: str) -> ExperimentConfig:
    """Four rounds with eight clients under two edge servers, with state that outlives rounds."""
    options: dict[str, Any] = {"intervals": (3, 4)} if method == "hsfl" else {}
    return ExperimentConfig(
        rounds=4,
        checkpoint_every=2,
        algorithm=ALGORITHMS[method].Config(
            batch_size=32, momentum=0.9, reset_optimizer="keep", participation=0.75, **options
        ),
        data=DataConfig(name="digits", num_clients=8, num_edges=2),
        model=ModelConfig(name="mlp"),
    )


def on_ray(quiet: ExperimentConfig) -> ExperimentConfig:
    """The same experiment with two client actors and every server in an actor of its own."""
    fleet = FleetConfig(kind="ray", client_actors=2, placement="separate", cpus_per_actor=0)
    return replace(quiet, fleet=fleet)


def numbers(result: Result) -> list[dict[str, float]]:
    """The history without what a clock measured."""
    return [
        {key: value for key, value in row.items() if not key.startswith("wall/")} for row in result.history
    ]


class Bench:
    """Undisturbed runs, and disturbed ones to hold against them."""

    def __init__(self, pool: ActorPool, replace_all: bool = False) -> None:
        self._pool, self._replace_all = pool, replace_all
        self._quiet: dict[str, tuple[Result, int]] = {}

    def quiet(self, method: str) -> tuple[Result, int]:
        """The result of a run that nobody disturbs, and how many calls it makes."""
        if method not in self._quiet:
            calls = 0

            def counted(group: Group, name: str, arguments: tuple[Any, ...]) -> Parcel:
                nonlocal calls
                calls += 1
                return call(group, name, arguments)

            experiment = Experiment(config(method))
            call = experiment.fleet._call
            experiment.fleet._call = counted  # type: ignore[method-assign]
            result = experiment.run()
            self._quiet[method] = result, calls
            experiment.close()
        return self._quiet[method]

    def draw(self, seed: int, number: int, methods: Sequence[str]) -> Kill:
        """The kill of some number: methods and roles in turn, the moment at random."""
        rng = numpy_generator(seed, "kills", number)
        method = methods[number % len(methods)]
        roles = [role for role in ROLES if role in ALGORITHMS[method].cast()]
        calls = self.quiet(method)[1]
        call = int(rng.integers(1, calls + 1))
        # Close to the end, a delay would let the run get away.
        delay = float(rng.uniform(0, LATEST_S)) if call < calls / 2 else 0.0
        return Kill(method, roles[number // len(methods) % len(roles)], bool(rng.integers(2)), call, delay)

    def strike(self, kill: Kill) -> Outcome:
        """Run with the kill and compare."""
        quiet = self.quiet(kill.method)[0]
        fleets: list[Doomed] = []

        def doomed(settings: ExperimentConfig, plan: Blueprint) -> RayFleet:
            fleets.append(Doomed(plan, settings.fleet, self._pool, kill))
            return fleets[-1]

        experiment = Experiment(on_ray(config(kill.method)), doomed)
        if self._replace_all:
            well = fleets[0]._well
            fleets[0]._well = lambda: [False for _ in well()]  # type: ignore[method-assign]
        seconds: list[float] = []
        relaunch = experiment.relaunch

        def timed() -> None:
            started = time.perf_counter()
            relaunch()
            seconds.append(time.perf_counter() - started)

        experiment.relaunch = timed  # type: ignore[method-assign]
        try:
            result = experiment.run()
        finally:
            experiment.close()
        same = result.weights_sha256 == quiet.weights_sha256 and numbers(result) == numbers(quiet)
        return Outcome(kill, fleets[0].struck_in, len(seconds), same, sum(seconds))


def table(outcomes: Sequence[Outcome]) -> str:
    """By role: kills, recoveries, identical results, seconds."""
    lines = ["role     kills  recovered  identical  seconds (median)  (longest)"]
    for role in (*ROLES, "all"):
        mine = [outcome for outcome in outcomes if role in (outcome.kill.role, "all")]
        hit = [outcome.recovery_s for outcome in mine if outcome.recoveries]
        if mine:
            lines.append(
                f"{role:<8} {len(mine):>5}  {len(hit):>9}  {sum(outcome.identical for outcome in mine):>9}"
                f"  {statistics.median(hit or [0.0]):>16.1f}  {max(hit, default=0.0):>9.1f}"
            )
    return "\n".join(lines)


def main() -> None:
    """Kill, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default="fedavg,splitfed_v1,splitfed_v2,mergesfl,hierfl,hsfl,sl")
    parser.add_argument("--replace-all", action="store_true", help="keep no actor")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ensure_ray()
    pool = ActorPool()
    bench = Bench(pool, options.replace_all)
    outcomes = []
    for number in range(options.kills):
        kill = bench.draw(options.seed, number, options.methods.split(","))
        outcomes.append(bench.strike(kill))
        if not options.json:
            print(f"{number + 1}/{options.kills} {outcomes[-1]}", flush=True)
    pool.close()
    if options.json:
        print(json.dumps([{**vars(o), "kill": vars(o.kill)} for o in outcomes]))
    else:
        print(table(outcomes))


if __name__ == "__main__":
    main()
