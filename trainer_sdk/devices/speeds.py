"""A small file that all ranks of a job map: each device's speed, whether it hangs, how slow its input is.

It exists for emulated devices only: the launcher creates it, fault injection writes it, devices read it at once.
"""

import math
import mmap
import os
from pathlib import Path
from typing import Self

_BYTES_PER_RANK = 24  # three float64: speed, hangs (0 or 1), input seconds; aligned, so nobody reads half a write
_VALUES_PER_RANK = _BYTES_PER_RANK // 8


class SpeedTable:
    """Speed, hang flag and input delay per rank, shared between processes through a file.

    Args:
        path: File made by :meth:`create`.

    Raises:
        ValueError: The file is no speed table.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes == 0 or size_bytes % _BYTES_PER_RANK:
                raise ValueError(f"{path} is no speed table: {size_bytes} bytes")
            self._map = mmap.mmap(file.fileno(), size_bytes)
        self._values = memoryview(self._map).cast("d")

    @classmethod
    def create(cls, path: Path, num_ranks: int) -> Self:
        """A new table in which every device is healthy; replaces an older file."""
        if num_ranks < 1:
            raise ValueError(f"a job of {num_ranks} ranks: it needs at least one")
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(bytes(num_ranks * _BYTES_PER_RANK))
        table = cls(fresh)
        for rank in range(num_ranks):
            table.set_speed(rank, 1.0)
        fresh.replace(path)
        return table

    @property
    def num_ranks(self) -> int:
        """Number of ranks in the table."""
        return len(self._values) // _VALUES_PER_RANK

    def speed(self, rank: int) -> float:
        """Speed of the rank's device, 1.0 = healthy."""
        return self._values[self._first_value(rank)]

    def set_speed(self, rank: int, speed: float) -> None:
        """Set the speed; ranks see it at their next compute segment.

        Raises:
            ValueError: The rank is not in the table, or the speed is not above 0 and finite.
        """
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"speed {speed}: use a number above 0, 1.0 is healthy; for 0 use hang or kill")
        self._values[self._first_value(rank)] = speed

    def hangs(self, rank: int) -> bool:
        """Whether the rank's device accepts work and never finishes it."""
        return self._values[self._first_value(rank) + 1] != 0.0

    def set_hangs(self, rank: int, hangs: bool) -> None:
        """Let the rank's device hang, or go on.

        Raises:
            ValueError: The rank is not in the table.
        """
        self._values[self._first_value(rank) + 1] = 1.0 if hangs else 0.0

    def input_seconds(self, rank: int) -> float:
        """How long a read of the rank's input takes at least; 0 = only what it really takes."""
        return self._values[self._first_value(rank) + 2]

    def set_input_seconds(self, rank: int, seconds: float) -> None:
        """Let each read of the rank's input take at least so long; 0 makes it healthy.

        Raises:
            ValueError: The rank is not in the table, or the seconds are below 0 or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{seconds} seconds: use 0 or more, 0 is healthy; for ever is hang")
        self._values[self._first_value(rank) + 2] = seconds

    def close(self) -> None:
        """Unmap the file."""
        self._values.release()
        self._map.close()

    def _first_value(self, rank: int) -> int:
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank {rank} is not in 0..{self.num_ranks - 1}")
        return _VALUES_PER_RANK * rank
