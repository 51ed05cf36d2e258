"""Where machine code is kept between processes, and when what is kept is out of date.

numba looks at a function's own file alone. What is compiled into it from other files, functions and numbers, belongs to
it as well: without these an edited helper, or an update of some files, would go on with the machine code of before.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator

from evenkeel.numeric.compiled import Compiled


class _KnowsWhatItUses:
    """A place whose stamp says what the function's file has imported, too."""

    _used = b""

    @classmethod
    def from_function(cls, py_func: Callable[..., object], py_file: str) -> Any:
        """See numba's ``_CacheLocator``."""
        place = super().from_function(py_func, py_file)  # type: ignore[misc]
        if place is not None:
            place._used = _digest(py_func.__globals__, py_func.__module__)
        return place

    def get_source_stamp(self) -> tuple[object, bytes]:
        """Of the file, and of what it uses."""
        return super().get_source_stamp(), self._used  # type: ignore[misc]


class NamedPlace(_KnowsWhatItUses, UserProvidedCacheLocator):
    """``NUMBA_CACHE_DIR``, where it is set."""


class PlaceBesideSource(_KnowsWhatItUses, InTreeCacheLocator):
    """``__pycache__`` beside the source."""


class PlaceOfUser(_KnowsWhatItUses, UserWideCacheLocator):
    """The user's cache folder."""


def _digest(names: Mapping[str, object], module: str) -> bytes:
    """Of the compiled functions of other modules, and of the numbers and texts, that a module's names stand for."""
    found = hashlib.sha256()
    for name, value in sorted(names.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, Compiled):
            if value.py_func.__module__ != module:
                found.update(_digest_of_module(value.py_func.__module__))
        elif isinstance(value, np.ndarray | np.generic):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        elif _is_plain(value):
            found.update(f"{name} {value!r}".encode())
    return found.digest()


@cache
def _digest_of_module(name: str) -> bytes:
    module = sys.modules[name]
    assert module.__file__ is not None, "compiled functions come from files"
    return Path(module.__file__).read_bytes() + _digest(vars(module), name)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | complex | str | bytes)
