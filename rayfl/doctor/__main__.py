"""One check in this process: ``python -m rayfl.doctor NAME REQUEST``, a JSON line per finding on stdout."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator

from rayfl.doctor.finding import Finding, Request, problem
from rayfl.errors import RunFailed, UserError


def findings(name: str, request: Request) -> Iterator[Finding]:
    """What a check finds; an exception is a finding too."""
    try:
        for finding in importlib.import_module(f"rayfl.doctor.{name}").check(request):
            yield dataclasses.replace(finding, check=name)
    except Exception as error:
        line = " ".join(str(error).split()) or "no further details"
        named = line if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {line}"
        yield dataclasses.replace(problem(named), check=name)


def main() -> None:
    """Write the findings and be silent otherwise: what a check starts gets neither end of the pipe."""
    name, request = sys.argv[1], Request(**json.loads(sys.argv[2]))
    with os.fdopen(os.dup(1), "w") as sink:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for finding in findings(name, request):
            print(json.dumps(dataclasses.asdict(finding)), file=sink, flush=True)


if __name__ == "__main__":
    main()
