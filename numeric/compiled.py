"""Marks a function over numbers and arrays to run as machine code."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A function that numba compiles at its first call with arguments of these types (a second or so).

    numba itself is loaded at the first call of the first of them: a service is up before it needs any. Calls may come
    from any thread.
    """

    _is_interpreted: ClassVar[bool] = False

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it."""
        return self.dispatcher(*args, **kwargs)

    @functools.cached_property
    def dispatcher(self) -> Callable[P, R]:
        """What numba makes of the function; itself in a process that interprets."""
        if Compiled._is_interpreted:
            return self.py_func
        from evenkeel.numeric.machine_code import dispatcher_of  # noqa: PLC0415 - numba, see above

        return dispatcher_of(self.py_func)

    @property
    def signatures(self) -> list[Any]:
        """Combinations of types that it was compiled or loaded for."""
        return list(getattr(self.__dict__.get("dispatcher"), "signatures", ()))

    @staticmethod
    def interpret() -> None:
        """Have this process run the Python source of all functions that it has not called yet, and never load numba.

        For one that asks little of them and must be small and up at once.
        """
        Compiled._is_interpreted = True


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """The function as machine code.

    What was compiled is kept beside the source, else in the user's cache folder, so that later processes only load it
    for as long as its source and what that imports are the same; where neither can be written, each process compiles
    for itself. Results are those of the Python source to the bit:
    no fast mathematics. ``NUMBA_DISABLE_JIT=1`` runs that source as it is, for a debugger.

    Only for what works on numbers, arrays and other compiled functions. Indexes are not checked in machine code.
    """
    return Compiled(function)
