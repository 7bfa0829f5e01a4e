"""Numbers and tables as people read them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Rows as left-aligned columns; the last may be of any length."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def in_bytes(count: float) -> str:
    """12345678 as 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def in_time(seconds: float) -> str:
    """3725 as 1 h 02 min: a duration that is guessed."""
    if seconds < 1:
        return "<1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def lasted(seconds: float) -> str:
    """0.0345 as 0.034 s: a duration that was measured, to two digits at least."""
    return f"{seconds:.2g} s" if seconds < 9.95 else in_time(seconds)


def counted(count: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def finite(value: Any) -> Any:
    """Plain values that JSON knows: NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
