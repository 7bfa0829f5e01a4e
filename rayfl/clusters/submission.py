"""From a checked request to a running job."""

import re
import shlex
from collections.abc import Mapping, Sequence

from rayfl.clusters.jobs import Job, Jobs
from rayfl.clusters.parcel import CHECK, Parcel
from rayfl.clusters.request import Request
from rayfl.errors import UserError

_SECRET = re.compile(r"TOKEN|PASSW|SECRET|CREDENTIAL|(^|_)KEY($|_)", re.IGNORECASE)


def entrypoint(request: Request, python: str, version: str) -> str:
    """What the head's shell runs. ``exec``, so that the signal that stops the job reaches rayfl itself."""
    check = shlex.join([python, CHECK, version])
    return f"{check} && exec {shlex.join([python, '-m', 'rayfl', *request.arguments])}"


def send(jobs: Jobs, request: Request, parcel: Parcel, python: str, environment: Mapping[str, str]) -> Job:
    """Submit it."""
    from rayfl import __version__

    line = entrypoint(request, python, __version__)
    return jobs.submit(line, parcel, environment, command=request.command, out=request.out, python=python)


def environment(settings: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` of the command line. Not for secrets: Ray shows a job's environment to all who ask."""
    found: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UserError(f"--env takes NAME=VALUE, got '{name}': write e.g. --env RAYFL_DATA=/shared/data")
        if _SECRET.search(name) or re.search(r"://[^/@\s]*:[^/@\s]*@", value):
            raise UserError(
                f"--env {name} looks like a secret, which Ray would show to everybody who lists jobs: "
                f"set it in the environment of the cluster's nodes"
            )
        found[name] = value
    return found
