"""Naming what was probably meant."""

import difflib
from collections.abc import Iterable

from rayfl.errors import UserError


def unknown(kind: str, name: object, known: Iterable[str], remark: str = "") -> UserError:
    """The error for a name that isn't known, with the nearest one that is, and what else helps."""
    options = sorted(known)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(options)}"
    return UserError(f"unknown {kind} '{name}'{f' ({remark})' if remark else ''}: {hint}")
