"""What a planner has looked at once, so that it is not looked at again."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Looks:
    """Answers for one cost model and the same speeds, links and domains, whoever else is there.

    A question is told from others by values, and by objects whose hashes are long, such as stages and layouts: by
    which object each is. Objects are kept with their answer, so that nobody else gets their id.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Hashable, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, what: str, *values: Hashable, of: tuple[object, ...] = (), find: Callable[[], _T]) -> _T:
        """What ``find`` answered when the same question came first.

        Args:
            what: Is asked.
            values: Further parts of the question, by what they are.
            of: Further parts of it, by which object they are.
            find: Answers it.
        """
        key = what, values, *map(id, of)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = of, find()
        answer: _T = found[1]
        return answer
