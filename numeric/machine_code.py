"""Functions as numba's dispatchers. Only who runs one imports this: numba takes a second to load on a busy machine."""

import contextlib
from collections.abc import Callable
from typing import Any

import numba
from numba.core import config, types
from numba.core.dispatcher import Dispatcher
from numba.extending import typeof_impl

from evenkeel.numeric.cache_places import NamedPlace, PlaceBesideSource, PlaceOfUser
from evenkeel.numeric.compiled import Compiled
from evenkeel.numeric.shared_cache import SharedFunctionCache

# In the order in which numba has its own; whoever names others by NUMBA_CACHE_LOCATOR_CLASSES gets those.
if not config.CACHE_LOCATOR_CLASSES:  # type: ignore[attr-defined]
    config.CACHE_LOCATOR_CLASSES = ",".join(  # type: ignore[attr-defined]
        f"{place.__module__}.{place.__qualname__}" for place in (NamedPlace, PlaceBesideSource, PlaceOfUser)
    )


def dispatcher_of(function: Callable[..., object]) -> Callable[..., Any]:
    """What compiles a function for the types of its arguments and runs it; with NUMBA_DISABLE_JIT the function."""
    found: Callable[..., Any] = numba.njit(function)
    # RuntimeError is numba's word for: no folder for a cache.
    with contextlib.suppress(RuntimeError):
        if isinstance(found, Dispatcher):
            found._cache = SharedFunctionCache(function)  # type: ignore[attr-defined]
    return found


@typeof_impl.register(Compiled)
def _type_of(value: Compiled[Any, Any], _context: object) -> "types.Dispatcher[Any]":
    """For those that others call, in machine code too."""
    dispatcher = value.dispatcher
    assert isinstance(dispatcher, Dispatcher), "nothing is typed where nothing is compiled"
    return types.Dispatcher(dispatcher)
