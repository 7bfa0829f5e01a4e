"""The CPUs that this process may use, against those of the machine."""

import os
from collections.abc import Iterator

from rayfl import allotment
from rayfl.doctor.finding import Finding, Request, ok


def check(request: Request) -> Iterator[Finding]:
    """Affinity, cgroup quota and what Slurm gave."""
    allowed, quota, given = len(os.sched_getaffinity(0)), allotment.cpu_quota(), allotment.slurm_cpus()
    limits = [f"with time for {quota:g} (cgroup quota)"] if quota is not None else []
    limits += [f"of which Slurm gave its job {given}"] if given is not None and given < allowed else []
    yield ok(", ".join([f"this process can run on {allowed} of {os.cpu_count()} CPUs", *limits]))
