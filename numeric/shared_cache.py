"""numba's cache, for processes that compile the same function at the same time: services, and tests beside one another.

By itself a process reads the index, chooses the next free number and writes index and machine code one after the other.
Two that did so at once chose the same number for other types of arguments, and a third was given code for the wrong
ones.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile


class SharedCacheFile(IndexDataCacheFile):
    """Index and machine code of one function, read and written by one at a time; also between processes."""

    _index_path: str

    def __init__(self, folder: str, name: str, stamp: object) -> None:
        super().__init__(folder, name, stamp)  # type: ignore[no-untyped-call]

    def save(self, key: object, data: object) -> None:
        """See numba's."""
        with self._alone():
            super().save(key, data)  # type: ignore[no-untyped-call]

    def load(self, key: object) -> Any:
        """See numba's."""
        with self._alone():
            return super().load(key)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            # Where nobody can write, nobody disturbs whoever reads.
            with contextlib.suppress(OSError):
                lock = stack.enter_context(Path(f"{self._index_path}.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class SharedFunctionCache(FunctionCache):
    """The cache of one function.

    Raises:
        RuntimeError: There is no folder for it.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        place = self._impl
        self._cache_file = SharedCacheFile(self._cache_path, place.filename_base, place.locator.get_source_stamp())
