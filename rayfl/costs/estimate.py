"""What an experiment will cost, without data and without training."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rayfl.config import ExperimentConfig
from rayfl.costs.accounting import ACCOUNTINGS, paper_hsfp
from rayfl.costs.empty import EmptyArithmetic
from rayfl.costs.phantom import PhantomFleet
from rayfl.costs.plan import make_plan
from rayfl.costs.sides import Memory, Side, measure
from rayfl.errors import UserError
from rayfl.host import Blueprint
from rayfl.ledger import HEADLINE_PHASES, Ledger
from rayfl.suggest import unknown

Tick = Callable[[int, int], None]
"""Is told how many rounds are done, and of how many."""
Line = tuple[str, str, str]
"""Link, direction and kind."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one experiment."""

    config: ExperimentConfig
    sides: tuple[Side, ...]
    """From the client up."""
    memory: Memory
    """Of one client."""
    ledger: Ledger
    """As the run's own will be, without evaluation, which isn't run."""
    from_counts: bool
    """Whether client sizes come from class counts, not from the dataset itself."""
    task: str
    """What the dataset asks for."""
    values_read: bool
    """Whether the method looked at values of tensors, which here are all 0."""

    @property
    def traffic(self) -> dict[Line, int]:
        """Headline bytes of all rounds together."""
        totals: Counter[Line] = Counter()
        for line, count in self.ledger.bytes.items():
            if line.phase in HEADLINE_PHASES and count:
                totals[line.link, line.direction, line.kind] += count
        return dict(sorted(totals.items()))

    @property
    def notes(self) -> list[str]:
        """What to know about the numbers, one line each."""
        notes, data = [], self.config.data
        if self.from_counts:
            notes.append(f"sizes from class counts: dataset '{data.name}' isn't prepared here")
        if (
            self.from_counts
            and data.edge_map in ("label_similar", "label_diverse")
            and data.partition.kind in ("iid", "quantity")
        ):
            notes.append(
                f"data.edge_map={data.edge_map} goes by clients' labels, under {data.partition.kind} drawn "
                f"row by row: which edges have participants, and so their traffic, may differ"
            )
        if self.task == "segmentation" and any(kind == "moments" for _, _, kind in self.traffic):
            notes.append(
                "masks are made up: every client is taken to have background, large lesions and images "
                "without any; one that hasn't sends less"
            )
        if self.values_read:
            notes.append(
                f"method '{self.config.algorithm.name}' looks at values, which are all 0 here: its real "
                f"traffic may differ"
            )
        return notes


def estimate(config: ExperimentConfig, accounting: str = "counted", tick: Tick | None = None) -> Estimate:
    """The cost of an experiment, its traffic by a key of ``ACCOUNTINGS``.

    Raises UserError where the method can't do without content, where only the dataset itself can tell who
    holds what, or where the accounting isn't defined.
    """
    if accounting not in ACCOUNTINGS:
        raise unknown("accounting", accounting, ACCOUNTINGS)
    plan = make_plan(config)
    with EmptyArithmetic() as arithmetic:
        with _without_content(config.algorithm.name):
            sides, memory = measure(config, plan)
        if accounting == "paper_hsfp":
            ledger = paper_hsfp(config, sides[0])
        else:
            ledger = count(plan.blueprint, config.rounds, tick)
    return Estimate(config, sides, memory, ledger, plan.from_counts, plan.source.task, arithmetic.was_read)


def count(blueprint: Blueprint, rounds: int, tick: Tick | None = None) -> Ledger:
    """The ledger after the method's own rounds on tensors without content."""
    fleet = PhantomFleet(blueprint)
    algorithm = blueprint.algorithm(blueprint.config, fleet)
    with _without_content(blueprint.config.name):
        for t in range(1, rounds + 1):
            fleet.begin_round(t)
            algorithm.round(t)
            fleet.settle()
            if tick is not None:
                tick(t, rounds)
    return fleet.ledger


@contextmanager
def _without_content(method: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"method '{method}' can't do without the content of its tensors ({error}): run it for a few "
            f"rounds instead"
        ) from error
