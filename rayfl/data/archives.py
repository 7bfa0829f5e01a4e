"""Files below a folder or inside archives, read by their path; nothing outside is read or written.

Zip archives are read in place. Tar archives can't be entered in the middle, so they are unpacked for a while.
"""

import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Collection
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

from rayfl.errors import UserError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


class Container(Protocol):
    """A folder or an archive."""

    @property
    def names(self) -> Collection[str]:
        """Of all files, relative, with forward slashes."""

    @property
    def folders(self) -> Collection[str]:
        """Likewise of the folders, those without files among them."""

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError where it can't be had."""


class Folder:
    """A folder on this machine; links in it are followed, since whoever made it may link what they like."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def names(self) -> Collection[str]:
        return self._content[0]

    @property
    def folders(self) -> Collection[str]:
        return self._content[1]

    @cached_property
    def _content(self) -> tuple[list[str], list[str]]:
        names, folders = [], []
        for place, below, files in os.walk(self.path, followlinks=True):
            below[:] = [folder for folder in below if not _is_litter(folder)]
            # A link to a folder above would be followed for ever.
            if os.path.realpath(place) in map(os.path.realpath, Path(place).parents):
                below.clear()
                continue
            prefix = place.removeprefix(str(self.path)).replace(os.sep, "/").strip("/")
            prefix += "/" if prefix else ""
            names += [prefix + file for file in files if not _is_litter(file)]
            folders += [prefix + folder for folder in below]
        return names, folders

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Zip:
    """A zip archive, read in place; each member is held against its checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, EOFError) as e:
            raise _damaged(path, e) from e
        self._members: dict[str, zipfile.ZipInfo] = {}
        self._folders: set[str] = set()
        for member in self._zip.infolist():
            name = _inside(path, member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _refused(path, member.filename, "is a link")
            if _is_litter(name):
                continue
            self._folders.update(map(str, PurePosixPath(name).parents))
            if member.is_dir():
                self._folders.add(name)
            else:
                self._members[name] = member
        self._folders.discard(".")

    @property
    def names(self) -> Collection[str]:
        return self._members

    @property
    def folders(self) -> Collection[str]:
        return self._folders

    def has(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(self._members[name])
        # RuntimeError: encrypted; NotImplementedError: an unknown kind of compression.
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as e:
            raise _damaged(self.path, e) from e


class Tar(Folder):
    """A tar archive, unpacked below a given folder for as long as this object is used."""

    def __init__(self, archive: Path, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        super().__init__(Path(tempfile.mkdtemp(dir=scratch)))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    _inside(archive, member.name)
                    if not (member.isreg() or member.isdir()):
                        raise _refused(archive, member.name, "is a link or a device")
                    tar.extract(member, self.path, filter="data")
                # The checksum of what was packed comes after all that tar itself reads.
                while tar.fileobj and tar.fileobj.read(1 << 20):
                    pass
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as e:
            raise _damaged(archive, e) from e


def is_archive(path: Path) -> bool:
    """Whether this is a file that is named like an archive."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def archive_stem(path: Path) -> str:
    """Its name without the ending."""
    ending = max((e for e in ENDINGS if path.name.lower().endswith(e)), key=len)
    return path.name[: -len(ending)]


def open_archive(path: Path, scratch: Path) -> Container:
    """Raises OSError for a damaged archive, UserError for a malicious one."""
    return Zip(path) if path.suffix.lower() == ".zip" else Tar(path, scratch)


def _inside(archive: Path, name: str) -> str:
    """A member's path in plain form. Raises UserError where it points out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match("[A-Za-z]:", name):
        raise _refused(archive, name, "points outside")
    return path.as_posix()


def _is_litter(name: str) -> bool:
    """Hidden files and what file managers leave behind."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _damaged(path: Path, cause: Exception) -> OSError:
    return OSError(f"{path} is damaged or cut off ({cause}); get it again")


def _refused(archive: Path, name: str, why: str) -> UserError:
    return UserError(f"{archive} is refused: its member {name!r} {why}; get the archive from its makers")
