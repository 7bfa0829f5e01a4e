"""Many image files gathered into one block on disk, chunk by chunk, so that a killed preparation goes on.

Beside ``<split>.image`` (and ``<split>.mask``), which only grow, ``<split>.journal`` has a line per chunk
that is safely in them: first the fingerprint of what is gathered, then what became of each image.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rayfl.data.images import Unreadable, decode_exact, decode_mask, probe
from rayfl.data.info import Files
from rayfl.data.progress import Progress
from rayfl.data.sampling import Ints
from rayfl.errors import UserError

CHUNK = 128
"""Images that are gathered at once, and at most lost by a kill."""


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """What became of some consecutive images; a line of the journal."""

    stop: int
    """The first image after them."""
    rows: list[int]
    """Images that were taken."""
    dimensions: list[tuple[int, int]]
    """Width and height of each."""
    sizes: dict[str, list[int]]
    """Bytes of each in the block of images, and in that of masks."""
    skipped: list[tuple[str, str]]
    """Name and reason of those that couldn't be read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """All images of a split that could be read."""

    rows: Ints
    """[n], places in ``Files.names``."""
    dimensions: Ints
    """[n, 2], width and height."""
    blocks: Mapping[str, Path]
    """For ``image`` and ``mask``: the file that holds one after another."""
    sizes: Mapping[str, Ints]
    """For each block: the bytes [n] of each."""
    skipped: list[tuple[str, str]]
    """Name and reason of each that couldn't be read."""


def gather(files: Files, folder: Path, split: str, key: str, skip: bool, progress: Progress) -> Gathered:
    """Read the images that an earlier, killed call with equal arguments hasn't, and say where all are.

    ``key`` stands for everything else that the bytes depend on. Raises UserError naming the first image that
    can't be read, unless such are to be skipped.
    """
    kinds = ("image",) if files.mask_names is None else ("image", "mask")
    blocks = {kind: folder / f"{split}.{kind}" for kind in kinds}
    journal = folder / f"{split}.journal"
    done = _resume(journal, _fingerprint(files, key), blocks)
    with ExitStack() as stack:
        log = stack.enter_context(journal.open("a", encoding="utf-8"))
        sinks = {kind: stack.enter_context(path.open("ab")) for kind, path in blocks.items()}
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        for chunk in done:
            _check_skipped(chunk, skip)
        progress.resume(done[-1].stop if done else 0)
        for start in range(done[-1].stop if done else 0, len(files.names), CHUNK):
            stop = min(start + CHUNK, len(files.names))
            read = [_read(files, row) for row in range(start, stop)]
            chunk, content = _chunk(files, start, list(pool.map(partial(_take, files), read)))
            _check_skipped(chunk, skip)
            for kind, sink in sinks.items():
                sink.writelines(content[kind])
                sink.flush()
                os.fsync(sink.fileno())
            log.write(json.dumps(asdict(chunk)) + "\n")
            log.flush()
            os.fsync(log.fileno())
            done.append(chunk)
            progress.advance(stop - start)
    return Gathered(
        rows=np.array([row for chunk in done for row in chunk.rows], dtype=np.int64),
        dimensions=np.array([size for chunk in done for size in chunk.dimensions], np.int64).reshape(-1, 2),
        blocks=blocks,
        sizes={kind: np.array([n for chunk in done for n in chunk.sizes[kind]], np.int64) for kind in kinds},
        skipped=[skipped for chunk in done for skipped in chunk.skipped],
    )


@dataclass(frozen=True, eq=False)
class _Taken:
    content: dict[str, bytes]
    """For ``image`` and ``mask``: what goes into the block."""
    dimensions: tuple[int, int]


def _read(files: Files, row: int) -> dict[str, bytes] | Unreadable:
    try:
        read = {"image": files.read(files.names[row])}
        if files.mask_names is not None:
            read["mask"] = files.read(files.mask_names[row])
    except OSError as e:
        return Unreadable(f"can't be read ({e.strerror or e})")
    return read


def _take(files: Files, read: dict[str, bytes] | Unreadable) -> _Taken | Unreadable:
    """Look through what was read; small images are decoded for good."""
    try:
        if isinstance(read, Unreadable):
            return read
        content = dict(read)
        dimensions = probe(read["image"])
        if "mask" in read:
            mask = decode_mask(read["mask"])
            if mask.shape[::-1] != dimensions:
                width, height = dimensions
                raise Unreadable(f"is {width}x{height}, its mask {mask.shape[1]}x{mask.shape[0]}")
            content["mask"] = read["mask"] if files.shape is None else mask.tobytes()
        if files.shape is not None:
            content["image"] = decode_exact(read["image"], files.shape).tobytes()
    except Unreadable as e:
        return e
    return _Taken(content, dimensions)


def _chunk(
    files: Files, start: int, results: list[_Taken | Unreadable]
) -> tuple[_Chunk, dict[str, list[bytes]]]:
    taken = {start + i: one for i, one in enumerate(results) if isinstance(one, _Taken)}
    kinds = ("image",) if files.mask_names is None else ("image", "mask")
    content = {kind: [one.content[kind] for one in taken.values()] for kind in kinds}
    return _Chunk(
        stop=start + len(results),
        rows=list(taken),
        dimensions=[one.dimensions for one in taken.values()],
        sizes={kind: [len(one) for one in content[kind]] for kind in kinds},
        skipped=[
            (files.names[start + i], str(one)) for i, one in enumerate(results) if isinstance(one, Unreadable)
        ],
    ), content


def _check_skipped(chunk: _Chunk, skip: bool) -> None:
    if chunk.skipped and not skip:
        name, reason = chunk.skipped[0]
        raise UserError(
            f"image '{name}' {reason}: mend it, or leave such images out with --on-unreadable skip "
            f"(data.on_unreadable=skip)"
        )


def _fingerprint(files: Files, key: str) -> str:
    digest = hashlib.sha256(key.encode())
    for names in (files.names, files.mask_names or ()):
        digest.update(json.dumps(list(names)).encode())
    for numbers in (files.labels, files.domains, files.groups):
        digest.update(b"none" if numbers is None else numbers.tobytes())
    return f"{digest.hexdigest()} {files.shape}"


def _resume(journal: Path, fingerprint: str, blocks: Mapping[str, Path]) -> list[_Chunk]:
    """The chunks that are safely in the blocks; whatever came after them is cut off."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    done: list[_Chunk] = []
    if lines[:1] == [fingerprint]:
        for line in lines[1:]:
            try:
                done.append(_Chunk(**json.loads(line)))
            except (ValueError, TypeError):  # the line that the kill tore
                break
    lengths = {kind: sum(sum(chunk.sizes[kind]) for chunk in done) for kind in blocks}
    for path in blocks.values():
        path.touch()
    if any(path.stat().st_size < lengths[kind] for kind, path in blocks.items()):
        done, lengths = [], dict.fromkeys(blocks, 0)
    for kind, path in blocks.items():
        os.truncate(path, lengths[kind])
    rewritten = journal.with_suffix(".new")
    rewritten.write_text("".join(f"{line}\n" for line in [fingerprint, *lines[1 : 1 + len(done)]]), "utf-8")
    rewritten.replace(journal)
    return done
