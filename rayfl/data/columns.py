"""The Arrow file of a split: one record batch, so that each column maps to one array.

Columns: ``image`` and ``mask``, fixed-shape tensors where images are small, encoded bytes where they aren't;
``label``, ``domain``, ``group``.
"""

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayfl.data.sampling import Ints


def tensors(content: Any, shape: tuple[int, ...]) -> pa.Array:
    """A column of uint8 tensors of one shape, from a buffer that holds one after another."""
    size = math.prod(shape)
    count = len(memoryview(content).cast("B")) // size
    flat = pa.Array.from_buffers(pa.uint8(), count * size, [None, pa.py_buffer(content)])
    storage = pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), storage)


def encoded(content: Any, sizes: Ints) -> pa.Array:
    """A column of byte strings, from a buffer that holds one after another and their ``sizes`` [N]."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)


def write(path: Path, columns: Mapping[str, pa.Array]) -> dict[str, int]:
    """Write a split; what comes back proves the file whole later."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    status = path.stat()
    return {
        "rows": batch.num_rows,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "crc32": checksum(path),
    }


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


class Columns:
    """A split on disk, mapped: a process pays for the pages it touches, and pages are shared."""

    def __init__(self, path: Path) -> None:
        self._batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        self.num_rows: int = self._batch.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self._batch.schema.names

    def is_encoded(self, name: str) -> bool:
        """Whether a column holds byte strings."""
        return bool(pa.types.is_large_binary(self._batch.column(name).type))

    def integers(self, name: str) -> Ints | None:
        """[N] int64, or None where the split has no such column."""
        return self._array(name, np.int64, ()) if name in self else None

    def tensors(self, name: str) -> npt.NDArray[np.uint8]:
        """[N, *shape]"""
        return self._array(name, np.uint8, tuple(self._batch.column(name).type.shape))

    def encoded(self, name: str) -> "EncodedColumn":
        """The byte strings of a column."""
        _, offsets, content = self._batch.column(name).buffers()
        return EncodedColumn(
            np.frombuffer(offsets, dtype=np.int64, count=self.num_rows + 1), memoryview(content)
        )

    def _array(self, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """A whole column without nulls as a read-only array on the same memory.

        Not by ``to_numpy``, whose first call imports pandas: 0.4 s in every process.
        """
        shape = (self.num_rows, *shape)
        buffer = self._batch.column(name).buffers()[-1]
        return np.frombuffer(buffer, dtype=dtype, count=math.prod(shape)).reshape(shape)


class EncodedColumn:
    """Byte strings on disk, sliced without copying."""

    def __init__(self, offsets: Ints, content: memoryview) -> None:
        self._offsets, self._content = offsets, content

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> memoryview:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self._content[self._offsets[row] : self._offsets[row + 1]]
