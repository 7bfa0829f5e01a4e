"""The memory that is left, against what processes need before any model."""

from collections.abc import Iterator
from pathlib import Path

from rayfl import allotment
from rayfl.doctor.finding import Finding, Request, ok, warning

_MEMINFO = Path("/proc/meminfo")
PER_PROCESS = 500_000_000
"""Bytes that a client actor or a trial takes with torch loaded and no model."""


def check(request: Request) -> Iterator[Finding]:
    """Total, available, the cgroup's limit."""
    total, available, limit = *amounts(), allotment.memory_limit()
    if limit is not None and limit < total:
        available = min(available, limit)
        yield ok(f"{_gb(available)} at most available of {_gb(total)}: the cgroup's limit is {_gb(limit)}")
    else:
        yield ok(f"{_gb(available)} available of {_gb(total)}")
    fit = max(1, available // PER_PROCESS)
    if fit < allotment.num_cpus():
        yield warning(
            f"that is less than {_gb(PER_PROCESS)} for each of {allotment.num_cpus()} CPUs: Ray kills "
            f"processes when memory runs out",
            f"set fleet.client_actors={fit} (run) or max_concurrent={fit} (sweep)",
        )


def amounts() -> tuple[int, int]:
    """Bytes of this machine: in all, and available."""
    lines = (line.split() for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
    found = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    return found["MemTotal:"], found["MemAvailable:"]


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
