"""Tables as text, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence

from rayfl import text
from rayfl.costs.tables import Row, Table, flat, tables

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"})


def as_text(rows: Sequence[Row]) -> str:
    """Three tables as aligned columns."""
    parts = [f"{table.title}\n{text.columns([table.header, *table.rows])}" for table in tables(rows)]
    return "\n\n".join(parts)


def as_csv(rows: Sequence[Row]) -> str:
    """One line per experiment; bytes of links are means over rounds. Cells without meaning stay empty."""
    records = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    target = io.StringIO()
    writer = csv.DictWriter(target, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return target.getvalue().rstrip("\n")


def as_latex(rows: Sequence[Row]) -> str:
    """Three tabulars with booktabs rules."""
    return "\n\n".join(map(_tabular, tables(rows)))


def _tabular(table: Table) -> str:
    lines = [
        f"% {table.title}",
        rf"\begin{{tabular}}{{{'l' * table.words}{'r' * (len(table.header) - table.words)}}}",
        r"\toprule",
        _line(table.header),
        r"\midrule",
        *map(_line, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(_SPECIAL) for cell in cells) + r" \\"


FORMATS = {"text": as_text, "csv": as_csv, "latex": as_latex}
