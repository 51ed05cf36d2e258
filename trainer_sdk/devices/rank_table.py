"""Numbers of all ranks of a job, in a small file that its processes map: what one writes, the others read at once."""

import mmap
import os
from pathlib import Path
from typing import ClassVar, Self

_BYTES = 8  # a float64; aligned, so nobody reads half a write


class RankTable:
    """Some numbers for each rank. The launcher creates it; a new one is full of zeros, and a hole on disk.

    Args:
        path: File made by :meth:`create`.

    Raises:
        ValueError: The file is no such table.
        OSError: The file cannot be opened.

    Attributes:
        num_ranks: Number of ranks in the table.
    """

    WHAT: ClassVar[str]
    PER_RANK: ClassVar[int]

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            self.num_ranks = self._num_ranks(size_bytes // _BYTES)
            if size_bytes == 0 or size_bytes != self._num_values(self.num_ranks) * _BYTES:
                raise ValueError(f"{path} is no {self.WHAT}: {size_bytes} bytes")
            self._map = mmap.mmap(file.fileno(), size_bytes)
        self._values = memoryview(self._map).cast("d")

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> Self:
        """A new table; replaces an older file."""
        if num_ranks < 1:
            raise ValueError(f"a job of {num_ranks} ranks: it needs at least one")
        fresh = path.with_name(path.name + ".new")
        with fresh.open("wb") as file:
            file.truncate(cls._num_values(num_ranks) * _BYTES)
        fresh.replace(path)
        return cls(path)

    def close(self) -> None:
        """Unmap the file."""
        self._values.release()
        self._map.close()

    @classmethod
    def _num_values(cls, num_ranks: int) -> int:
        return cls.PER_RANK * num_ranks

    @classmethod
    def _num_ranks(cls, num_values: int) -> int:
        return num_values // cls.PER_RANK
