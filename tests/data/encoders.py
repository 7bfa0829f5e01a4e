"""Small images and the files that hold them, by real encoders.

An image's red channel tells its label (20 * label + 10, about), so tests can tell whether the two met.
"""

import csv
import io
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


def pixels(label: int, index: int = 0, size: int = 20) -> np.ndarray:
    """[size, size, 3] uint8, of one colour."""
    return np.full((size, size, 3), (20 * label + 10, (37 * index) % 256, 128), dtype=np.uint8)


def encoded(label: int, index: int = 0, size: int = 20, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """An image file; ``mode`` L keeps the red channel alone."""
    picture = pixels(label, index, size)
    image = Image.fromarray(picture[:, :, 0] if mode == "L" else picture)
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def label_of(content: bytes) -> int:
    """The label that an encoded image was made for."""
    red = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))[:, :, 0].mean()
    return round((float(red) - 10) / 20)


def put(path: Path, content: bytes | str) -> None:
    """A file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def put_table(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A CSV file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    put(path, text.getvalue())


def pack(path: Path, folder: Path) -> None:
    """A zip archive of a folder's content."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the format of MNIST."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def python2_pickle(value: Any) -> bytes:
    """As Python 2 and its numpy pickled it."""
    return pickle.dumps(value, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def photograph_and_mask(index: int, size: int = 24) -> tuple[bytes, bytes]:
    """Noisy skin with a dark ellipse, and the ellipse white on black."""
    mask = Image.new("L", (size, size), 0)
    ImageDraw.Draw(mask).ellipse((4, 4, 10 + index % 8, 14), fill=255)
    noise = np.random.default_rng(index).integers(0, 60, (size, size, 3))
    skin = (190 - np.asarray(mask)[:, :, None] / 2 + noise).astype(np.uint8)
    files = io.BytesIO(), io.BytesIO()
    Image.fromarray(skin).save(files[0], "JPEG")
    mask.save(files[1], "PNG")
    return files[0].getvalue(), files[1].getvalue()
