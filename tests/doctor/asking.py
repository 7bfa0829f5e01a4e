"""Asking one check in this process."""

import importlib
from pathlib import Path

from rayfl.doctor.finding import Finding, Request


def ask(name: str, folder: Path, root: Path | None = None) -> list[Finding]:
    """The findings of a check; ``folder`` is the place of results and of scratch files."""
    request = Request(out=str(folder), scratch=str(folder), root=None if root is None else str(root))
    return list(importlib.import_module(f"rayfl.doctor.{name}").check(request))


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]
