"""A trial in its process: one job after another."""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune

from rayfl.actors.fleet import ENVIRONMENT
from rayfl.actors.placement import reservation
from rayfl.machines import Need
from rayfl.trials import Step, TrialWork, failed


@dataclass(frozen=True)
class Job:
    """What a trial does, packed: the user's own modules must be found before anything is unpacked that
    mentions them."""

    key: str
    """What the driver knows it by."""
    cell: str
    """The cell, or the first of the cells, that it reports of."""
    needs: Sequence[Need] = field(repr=False)
    """The bundles that it reserves."""
    payload: bytes = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a scheduler may change on the way."""

    @classmethod
    def of(
        cls, key: str, cell: str, needs: Sequence[Need], start: Callable[..., TrialWork], **settings: Any
    ) -> "Job":
        """A job that is begun by ``start(**settings)``."""
        return cls(key, cell, needs, cloudpickle.dumps(start), settings)

    def begin(self) -> TrialWork:
        """Begin it."""
        work: TrialWork = cloudpickle.loads(self.payload)(**self.settings)
        return work


class Trial(tune.Trainable):
    """One job after another in one process. ``config["job"]`` is the job.

    It never raises: what breaks a job is sent as its result, so that the process lives on for the next.
    """

    def setup(self, config: dict[str, Any], paths: Sequence[str] = ()) -> None:
        """Take up the first job."""
        sys.path += [path for path in paths if path not in sys.path]
        os.environ.update(ENVIRONMENT)
        self._job: Job = config["job"]
        self._work: TrialWork | None = None

    def step(self) -> dict[str, Any]:
        """Some rounds, at least one."""
        try:
            step = self._begun().advance()
        except Exception as failure:
            report = failed(failure, self._job.cell, None)
            step = Step({self._job.cell: report}, True, {"round": 0.0, "score": math.nan})
        return {"step": step, **step.numbers, "done": step.done}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | None:
        """What a trial that is paused, or taken as an example, goes on from."""
        return self._begun().save(Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint: dict[str, Any] | str | None) -> None:
        """Go on from there."""
        assert checkpoint is not None
        self._begun().load(checkpoint if isinstance(checkpoint, dict) else Path(checkpoint))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take up the next job."""
        self.cleanup()
        self._job = new_config["job"]
        return True

    def cleanup(self) -> None:
        """Let go of the job."""
        if self._work is not None:
            self._work.close()
            self._work = None

    def _begun(self) -> TrialWork:
        if self._work is None:
            self._work = self._job.begin()
        return self._work


def trainable() -> Any:
    """The class to run with Tune."""
    paths = [os.path.abspath(path) for path in sys.path]
    return tune.with_resources(
        tune.with_parameters(Trial, paths=paths),
        lambda config: tune.PlacementGroupFactory(**reservation(config["job"].needs)),
    )
