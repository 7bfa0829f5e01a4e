"""What a reader is given: the user's files, whether packed or not."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rayfl.data.archives import ENDINGS, Container, Folder, archive_stem, is_archive, open_archive


class Source:
    """What the user points at: an archive, or a folder whose archives are seen as folders of their name."""

    def __init__(self, path: Path, scratch: Path, archives: Sequence[str] = ()) -> None:
        """Open ``path``; in a folder, also the archives right in it that match the patterns ``archives``.

        An archive beside the folder it was unpacked to is left alone. ``scratch`` is where tar archives are
        unpacked. Raises OSError where something is missing or damaged, UserError for a malicious archive.
        """
        self.path = path
        self._parts: list[tuple[str, Container]]
        if path.is_dir():
            found = sorted(p for pattern in archives for p in path.glob(pattern) if is_archive(p))
            packed = [p for p in found if not (path / archive_stem(p)).is_dir()]
            self._parts = [(archive_stem(p) + "/", open_archive(p, scratch)) for p in packed] + [
                ("", Folder(path))
            ]
        elif is_archive(path):
            self._parts = [("", open_archive(path, scratch))]
        elif path.exists():
            raise OSError(f"{path} is neither a folder nor an archive ({', '.join(ENDINGS)})")
        else:
            raise FileNotFoundError(f"{path} doesn't exist")

    @cached_property
    def names(self) -> list[str]:
        """Of all files, relative, with forward slashes, in order."""
        return sorted(prefix + name for prefix, part in self._parts for name in part.names)

    @cached_property
    def folders(self) -> list[str]:
        """Likewise of the folders, those without files among them."""
        return sorted(prefix + name for prefix, part in self._parts for name in part.folders)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        part, inner = self._part(name)
        return part.has(inner)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises OSError where it can't be had."""
        part, inner = self._part(name)
        return part.read(inner)

    def _part(self, name: str) -> tuple[Container, str]:
        # The folder itself comes last: it takes what belongs to no archive.
        prefix, part = next((p, part) for p, part in self._parts if name.startswith(p))
        return part, name.removeprefix(prefix)

    def find(self, *endings: str) -> str | None:
        """The name, nearest to the top, that is or ends with one of these paths; None without any."""
        tails = tuple(f"/{ending}" for ending in endings)
        fitting = (name for name in self.names if f"/{name}".endswith(tails))
        return min(fitting, key=lambda name: (name.count("/"), name), default=None)

    def need(self, *endings: str) -> str:
        """As ``find``. Raises FileNotFoundError without any."""
        name = self.find(*endings)
        if name is None:
            raise FileNotFoundError(f"there is no {' or '.join(endings)} in {self.path}")
        return name
