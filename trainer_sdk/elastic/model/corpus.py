"""Real text that every machine has: the source files of Python's standard library, as bytes."""

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
_SHORTEST_FILE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Files one after the other.

    Attributes:
        data: All bytes.
        borders: Where each file starts, and at the end the length of ``data``.
    """

    data: npt.NDArray[np.uint8]
    borders: npt.NDArray[np.int64]

    def file_around(self, position: int) -> tuple[int, int]:
        """Start and stop of the file that contains a byte position."""
        index = int(np.searchsorted(self.borders, position, side="right")) - 1
        return int(self.borders[index]), int(self.borders[index + 1])


@lru_cache(maxsize=2)
def load_corpus(num_bytes: int) -> Corpus:
    """About ``num_bytes`` of the standard library's sources, in the order of their paths; read once per process.

    Raises:
        RuntimeError: This Python has no source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts: list[npt.NDArray[np.uint8]] = []
    borders = [0]
    for path in _source_files(root):
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if content.size < _SHORTEST_FILE_BYTES:
            continue
        parts.append(content)
        borders.append(borders[-1] + content.size)
        if borders[-1] >= num_bytes:
            break
    if not parts:
        raise RuntimeError(f"no Python sources below {root}: install the standard library with its .py files")
    return Corpus(data=np.concatenate(parts), borders=np.array(borders, dtype=np.int64))


def _source_files(root: Path) -> Iterator[Path]:
    """Source files below ``root`` in a fixed order; installed packages and tests are not walked at all."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
