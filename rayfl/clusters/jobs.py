"""The jobs of a cluster, through Ray's Jobs API. The only file here that imports ray."""

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfl.clusters.head import Head
from rayfl.clusters.parcel import Parcel, unpack
from rayfl.errors import RunFailed, UserError
from rayfl.suggest import unknown

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
STOP_WAIT_S = 60
"""How long a job may take to end in order, with a checkpoint, before it is killed."""
_ENVIRONMENT = {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
_COMMAND, _OUT, _PYTHON = "rayfl_command", "rayfl_out", "rayfl_python"
_LOG = logging.getLogger("rayfl.clusters")


@dataclass(frozen=True)
class Job:
    """What the head knows of a job that rayfl has sent."""

    id: str
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    command: str
    out: str
    python: str
    started_s: float | None
    """Seconds since 1970."""
    ended_s: float | None


class Jobs:
    """The jobs of one cluster."""

    def __init__(self, head: Head) -> None:
        self.head = head
        with self._heard(), _no_other_address():
            from ray.job_submission import JobSubmissionClient

            # The last two have a level of their own.
            for name in ("ray", "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk"):
                logging.getLogger(name).setLevel(logging.ERROR)
            self._client = JobSubmissionClient(head.url, headers=dict(head.headers))

    def submit(
        self,
        entrypoint: str,
        parcel: Parcel,
        environment: Mapping[str, str],
        *,
        command: str,
        out: str,
        python: str,
    ) -> Job:
        """Send a job with its files; what is said of it comes back with every listing."""
        about = {_COMMAND: command, _OUT: out, _PYTHON: python}
        return self.find(self._send(entrypoint, parcel, environment, about))

    def _send(
        self,
        entrypoint: str,
        parcel: Parcel,
        environment: Mapping[str, str] | None = None,
        metadata: dict[str, str] | None = None,
    ) -> str:
        with self._heard(), tempfile.TemporaryDirectory() as folder:
            unpack(parcel, Path(folder))
            runtime = {"working_dir": folder, "env_vars": {**_ENVIRONMENT, **(environment or {})}}
            job: dict[str, Any] = {"entrypoint": entrypoint, "runtime_env": runtime, "metadata": metadata}
            for attempt in range(10):
                try:
                    return str(self._client.submit_job(**job))
                except RuntimeError as error:
                    # A head that has just started has nobody for jobs; it waits 10 s before it says so.
                    if "No available agent" not in str(error):
                        raise
                if attempt == 0:
                    _LOG.warning("the head at %s takes no jobs yet: asking for two minutes", self.head.url)
            raise RunFailed(
                f"the head at {self.head.url} takes no jobs: unless it has just started, something else on "
                f"its machine, such as another Ray, has port 52365, where its agent listens; start the head "
                f"with another one: ray start --head --dashboard-agent-listen-port=52366"
            )

    def output_of(self, entrypoint: str, parcel: Parcel) -> str:
        """What a small job prints, which nobody hears of otherwise."""
        name = self._send(entrypoint, parcel)
        try:
            while self._status(name) not in ENDED:
                time.sleep(0.5)
            return self.logs(name)
        finally:
            with self._heard():
                if self._status(name) in ENDED:
                    self._client.delete_job(name)
                else:
                    self._client.stop_job(name)

    def all(self) -> list[Job]:
        """rayfl's jobs, in order of their start."""
        with self._heard():
            found = [_job(details) for details in self._client.list_jobs() if _is_ours(details)]
        return sorted(found, key=lambda job: job.started_s or float("inf"))

    def find(self, name: str) -> Job:
        """One of rayfl's jobs; UserError for any other name."""
        known = {job.id: job for job in self.all()}
        if not known:
            raise UserError(f"no job '{name}' at {self.head.url}: it has none of rayfl's")
        if name not in known:
            raise unknown("job", name, known)
        return known[name]

    def logs(self, name: str) -> str:
        """All that a job has printed."""
        with self._heard():
            return str(self._client.get_job_logs(name))

    def follow(self, name: str, show: Callable[[str], None]) -> Job:
        """Show what a job prints until it has ended."""
        shown = 0
        while True:
            status, asked_s = self._status(name), time.monotonic()
            printed = self.logs(name)
            if printed[shown:]:
                show(printed[shown:])
            shown = len(printed)
            if status in ENDED:
                return self.find(name)
            # Each answer holds the whole log: what takes long is asked for less often.
            time.sleep(max(1.0, 10 * (time.monotonic() - asked_s)))

    def stop(self, name: str) -> Job:
        """Ask a job to end in order and wait until it has."""
        with self._heard():
            self._client.stop_job(name)
        deadline = time.monotonic() + STOP_WAIT_S + 15
        while self._status(name) not in ENDED and time.monotonic() < deadline:
            time.sleep(0.5)
        return self.find(name)

    def _status(self, name: str) -> str:
        with self._heard():
            return str(self._client.get_job_status(name).value)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """What goes wrong between here and the head, in one line."""
        try:
            yield
        except (RunFailed, UserError):
            raise
        except (RuntimeError, OSError, ValueError) as error:
            line = " ".join(str(error).split())
            raise RunFailed(f"the head at {self.head.url} did not do it: {line[:300]}") from None


def _is_ours(details: Any) -> bool:
    return bool(details.submission_id and details.metadata and _COMMAND in details.metadata)


def _job(details: Any) -> Job:
    about = details.metadata
    return Job(
        id=details.submission_id,
        status=str(details.status.value),
        command=about[_COMMAND],
        out=about.get(_OUT, ""),
        python=about.get(_PYTHON, "python"),
        started_s=None if not details.start_time else details.start_time / 1000,
        ended_s=None if not details.end_time else details.end_time / 1000,
    )


@contextlib.contextmanager
def _no_other_address() -> Iterator[None]:
    """Ray prefers what these say to the address that it is given."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
