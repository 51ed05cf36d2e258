"""Marks a function over numbers and arrays to run as machine code."""

import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba
from numba.core import config
from numba.core.dispatcher import Dispatcher

from evenkeel.numeric.cache_places import NamedPlace, PlaceBesideSource, PlaceOfUser
from evenkeel.numeric.shared_cache import SharedFunctionCache

P = ParamSpec("P")
R = TypeVar("R")

# In the order in which numba has its own; whoever names others by NUMBA_CACHE_LOCATOR_CLASSES gets those.
if not config.CACHE_LOCATOR_CLASSES:  # type: ignore[attr-defined]
    config.CACHE_LOCATOR_CLASSES = ",".join(  # type: ignore[attr-defined]
        f"{place.__module__}.{place.__qualname__}" for place in (NamedPlace, PlaceBesideSource, PlaceOfUser)
    )


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled by numba at its first call with arguments of these types (a second or so).

    What was compiled is kept beside the source, else in the user's cache folder, so that later processes only load it
    for as long as its source and what that imports are the same; where neither can be written, each process compiles
    for itself. Results are those of the Python source to the bit:
    no fast mathematics. ``NUMBA_DISABLE_JIT=1`` runs that source as it is, for a debugger.

    Only for what works on numbers, arrays and other compiled functions. Indexes are not checked in machine code.
    """
    found = numba.njit(function)
    # With NUMBA_DISABLE_JIT it is the function; RuntimeError is numba's word for: no folder for a cache.
    with contextlib.suppress(RuntimeError):
        if isinstance(found, Dispatcher):
            found._cache = SharedFunctionCache(function)  # type: ignore[attr-defined]
    return cast(Callable[P, R], found)
