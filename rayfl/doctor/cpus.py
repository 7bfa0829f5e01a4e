"""The CPUs that this process may use, against those of the machine."""

import os
from collections.abc import Iterator

from rayfl import allotment
from rayfl.doctor.finding import Finding, Request, ok, warning


def check(request: Request) -> Iterator[Finding]:
    """Affinity, cgroup quota and Slurm's promise."""
    allowed, quota = len(os.sched_getaffinity(0)), allotment.cpu_quota()
    limit = "" if quota is None else f", with time for {quota:g} (cgroup quota)"
    yield ok(f"this process may run on {allowed} of {os.cpu_count()} CPUs{limit}")
    promised = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if promised.isdecimal() and int(promised) < allowed:
        yield warning(
            f"Slurm gave this job {promised} CPUs of this node, but the process may run on {allowed}",
            f"start it as: taskset -c 0-{int(promised) - 1} rayfl ..., or set fleet.client_actors={promised}",
        )
