"""Checks in processes of their own, each with a time limit, side by side."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.doctor.finding import Finding, Request, problem


@dataclass(frozen=True)
class Stage:
    """Checks that run at the same time."""

    checks: tuple[str, ...]
    """Their modules in ``rayfl.doctor``, in the order of the report."""
    limit_s: float
    """Seconds after which those that have not ended are killed."""


STAGES = (
    Stage(("versions", "cpus", "memory", "gpus", "ray_folder", "shared_memory", "ports", "limits", "store",
           "datasets"), limit_s=18),
    Stage(("smoke_run",), limit_s=38),
)  # fmt: skip
"""The smoke run has the machine to itself. All limits together are less than a minute."""


def examine(
    say: Callable[[str], None], patience: float = 1.0, stages: Sequence[Stage] = STAGES, **about: Any
) -> Iterator[Finding]:
    """All findings, in the order of the report, as they come; ``about`` is the rest of the request.

    ``say`` gets a word before each wait. All limits are multiplied by ``patience``.
    """
    with tempfile.TemporaryDirectory(prefix="rayfl-doctor-", ignore_cleanup_errors=True) as scratch:
        request = Request(scratch=scratch, **about)
        for stage in stages:
            limit_s = patience * stage.limit_s
            say(f"{' '.join(stage.checks)}: at most {limit_s:g} s")
            running: list[_Check] = []
            try:
                running += (_Check(name, request, limit_s) for name in stage.checks)
                for check in running:
                    yield from check.findings()
            except OSError as error:
                yield problem(f"can't start {sys.executable} ({error})", "make it possible, then ask again")
            finally:
                for check in running:
                    check.kill()


class _Check:
    """One check under way."""

    def __init__(self, name: str, request: Request, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._until = time.monotonic() + limit_s
        # Not from the current folder, where a file of the user's may be called like a module.
        command = [sys.executable, "-P", "-m", "rayfl.doctor", name, json.dumps(dataclasses.asdict(request))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def findings(self) -> Iterator[Finding]:
        """What it found; that it crashed or took too long is a finding too."""
        try:
            # One that has ended needs a moment to be read, even if its time is over.
            out, err = self._process.communicate(timeout=max(0.2, self._until - time.monotonic()))
            failure = self._crash(err)
        except subprocess.TimeoutExpired:
            self.kill()
            out, failure = self._rest(), self._delay()
        for line in out.splitlines():
            yield Finding(**json.loads(line))
        if failure is not None:
            yield dataclasses.replace(failure, check=self._name)

    def _crash(self, err: str) -> Finding | None:
        code = self._process.returncode
        if not code:
            return None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = (err.strip().splitlines() or ["no further details"])[-1]
        return problem(f"the check was ended by {how}: {last}")

    def _delay(self) -> Finding:
        load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs"
        return problem(
            f"no answer within {self._limit_s:g} s ({load})",
            "if the machine is only busy: --patience 3; else look for a disk that does not answer",
        )

    def _rest(self) -> str:
        """What a killed process had said. One that waits for a dead disk can't be killed, and is left."""
        try:
            return self._process.communicate(timeout=1)[0]
        except subprocess.TimeoutExpired:
            return ""

    def kill(self) -> None:
        """End it and what it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
