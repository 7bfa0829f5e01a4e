"""What this process may use of its machine: CPUs and memory, as scheduler and container allow."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""The first version of cgroups writes a number near 2**63 where there is no limit."""


def num_cpus() -> int:
    """CPUs that this process may keep busy: those it can run on, but no more than its cgroup's quota and what
    Slurm gave its job."""
    limits = [len(os.sched_getaffinity(0)), cpu_quota(), slurm_cpus()]
    return max(1, min(math.floor(limit) for limit in limits if limit is not None))


def slurm_cpus() -> int | None:
    """CPUs of this node that Slurm gave the job, which it may not enforce; None outside of one."""
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return int(given) if given.isdecimal() else None


def cpu_quota() -> float | None:
    """CPUs' worth of time that the cgroup of this process gets; None without a limit."""
    quotas = []
    for folder in _cgroups("cpu"):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdecimal():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Bytes that the cgroup of this process may use; None without a limit."""
    limits = []
    for folder in _cgroups("memory"):
        words = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        if words and words[0].isdecimal() and int(words[0]) < _NO_LIMIT:
            limits.append(int(words[0]))
    return min(limits, default=None)


def _cgroups(controller: str) -> Iterator[Path]:
    """The cgroup of this process and all above it: the tightest limit holds.

    In a container the path may be the host's, which isn't there; the root then is the container's own.
    """
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUPS / controller if controllers else _CGROUPS
        place = base / path.lstrip("/")
        yield from (folder for folder in (place, *place.parents) if folder.is_relative_to(base))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []
