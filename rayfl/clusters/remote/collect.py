"""Runs as a job of its own: prints the result files of an output folder, packed, between two marks.

Usage: collect.py FOLDER LIMIT [--weights], LIMIT in bytes before packing.
"""

import base64
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".md", ".json", ".jsonl", ".csv", ".parquet", ".yaml", ".png")
LEFT_OUT = ("mlartifacts", "mlruns")
BEGIN, END = "RAYFL-RESULTS-BEGIN", "RAYFL-RESULTS-END"
LINE = 60_000


def result_files(folder: Path, weights: bool) -> Iterator[Path]:
    """The files worth taking home, by name; nothing hidden, no checkpoints, no links."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            chosen = path.suffix in SUFFIXES or (weights and name == "weights.pt")
            if chosen and not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def packed(folder: Path, paths: list[Path]) -> bytes:
    """The files as a ZIP archive, named by their place in the folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            archive.writestr(path.relative_to(folder).as_posix(), path.read_bytes())
    return buffer.getvalue()


def main(folder: Path, limit: int, weights: bool) -> int:
    """Print the archive; 2 where there is nothing, or too much."""
    paths = list(result_files(folder, weights))
    size = sum(path.stat().st_size for path in paths)
    if not paths:
        print(f"rayfl: error: no results in '{folder}' on the cluster's head")
        return 2
    if size > limit:
        largest = max(paths, key=lambda path: path.stat().st_size)
        print(
            f"rayfl: error: {len(paths)} files of {size / 1e6:.0f} MB in '{folder}' are more than the "
            f"{limit / 1e6:.0f} MB that jobs fetch takes (the largest is {largest.relative_to(folder)}): "
            f"copy the folder itself"
        )
        return 2
    content = packed(folder, paths)
    text = base64.b64encode(content).decode()
    print(BEGIN, hashlib.sha256(content).hexdigest())
    for start in range(0, len(text), LINE):
        print(text[start : start + LINE])
    print(END)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).expanduser(), int(sys.argv[2]), "--weights" in sys.argv[3:]))
