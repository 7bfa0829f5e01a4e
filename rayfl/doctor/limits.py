"""How many files and processes one user's programs may have open."""

import resource
from collections.abc import Iterator

from rayfl import allotment
from rayfl.doctor.finding import Finding, Request, ok, warning

FILES = 4096
"""Below this Ray itself warns. It raises the soft limit by itself, so that the hard one counts."""
SERVICES, PER_CPU = 300, 50
"""Processes and threads: Ray's services have about 125 on 2 CPUs, a worker has about 30 (Ray 2.60); the rest
is for what else the user runs."""


def check(request: Request) -> Iterator[Finding]:
    """Against what a sweep on all CPUs needs."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= FILES:
        yield ok("open files: enough")
    else:
        yield warning(
            f"at most {files} open files per process, Ray asks for {FILES}",
            f"raise it: ulimit -Hn {FILES} (as root), or nofile in /etc/security/limits.conf",
        )
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = SERVICES + PER_CPU * allotment.num_cpus()
    if processes == resource.RLIM_INFINITY or processes >= needed:
        yield ok("processes and threads: enough")
    else:
        yield warning(
            f"at most {processes} processes and threads of this user, Ray on {allotment.num_cpus()} CPUs "
            f"takes up to {needed}",
            f"raise it: ulimit -Hu {needed} (as root), or nproc in /etc/security/limits.conf",
        )
