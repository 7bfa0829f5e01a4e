"""Bringing a job's result files home: packed by a small job there, unpacked with distrust here."""

import base64
import binascii
import hashlib
import io
import shlex
import zipfile
from pathlib import Path, PurePosixPath

from rayfl.clusters.jobs import Job, Jobs
from rayfl.clusters.parcel import COLLECT, script
from rayfl.clusters.remote.collect import BEGIN, END
from rayfl.errors import RunFailed, UserError

LIMIT = 100_000_000
"""Bytes of all files together, before packing: they travel through a job's log and the head's memory."""


def fetch(jobs: Jobs, job: Job, to: Path, weights: bool) -> list[Path]:
    """The result files of a job's output folder, written below ``to``."""
    command = [job.python, COLLECT, job.out, str(LIMIT), *(["--weights"] if weights else [])]
    printed = jobs.output_of(shlex.join(command), {COLLECT: script("collect")})
    return unpack(content_of(printed), to)


def content_of(printed: str) -> bytes:
    """The archive in what the collecting job has printed."""
    lines = printed.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f"{BEGIN} ")]
    if not starts or END not in lines[starts[0] :]:
        told = [line.removeprefix("rayfl: error: ") for line in lines if line.startswith("rayfl: error: ")]
        last = lines[-1] if lines else "it printed nothing"
        raise RunFailed(told[0] if told else f"the job that collects the results failed: {last}")
    start = starts[0]
    try:
        content = base64.b64decode("".join(lines[start + 1 : lines.index(END, start)]), validate=True)
    except binascii.Error:
        content = b""
    if hashlib.sha256(content).hexdigest() != lines[start].split()[1]:
        raise RunFailed("the results came damaged: fetch them again")
    return content


def unpack(content: bytes, to: Path) -> list[Path]:
    """Write an archive's files below a folder, and nowhere else, whatever their names say."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LIMIT:
                raise RunFailed(f"the results are more than {LIMIT / 1e6:.0f} MB, which nobody asked for")
            files = {_inside(to, entry.filename): archive.read(entry) for entry in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise RunFailed(f"the results came damaged ({error}): fetch them again") from None
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        except OSError as error:
            raise UserError(f"can't write '{path}' ({error.strerror}): choose another --to") from error
    return list(files)


def _inside(to: Path, name: str) -> Path:
    place = PurePosixPath(name)
    path = to.joinpath(*place.parts)
    odd = place.is_absolute() or ".." in place.parts or "\\" in name or ":" in name
    if odd or not path.resolve().is_relative_to(to.resolve()):
        raise RunFailed(f"the results hold a file '{name}', which would land elsewhere: nothing was written")
    return path
