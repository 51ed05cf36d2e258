"""What was told of a link, an endpoint or a group, for as long as it is not over."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class LinkComplaint:
    """What was told of some rows of a link bank and is not over.

    Attributes:
        ranks: One is an endpoint, two are a link, more are a group.
        rows: The rows that share the slowdown.
        slow: Those of them that the tests hold to be slow.
        published: Speed last told, 1 = as before.
        first_iteration: First iteration that showed it.
        num_frames: Frames since it was told.
        healing_since: Iteration since which one of the rows is not slow any more; -1 while all are.
    """

    ranks: tuple[int, ...]
    rows: set[int]
    slow: set[int]
    published: float
    first_iteration: int
    num_frames: int = 0
    healing_since: int = -1

    def to_state(self) -> list[Any]:
        """Everything known, as plain values."""
        plain = [list(self.ranks), sorted(self.rows), sorted(self.slow)]
        return [*plain, self.published, self.first_iteration, self.num_frames, self.healing_since]

    @classmethod
    def from_state(cls, plain: list[Any]) -> "LinkComplaint":
        """What :meth:`to_state` gave."""
        ranks, rows, slow, published, first_iteration, num_frames, *healing_since = plain
        return cls(
            ranks=tuple(ranks),
            rows=set(rows),
            slow=set(slow),
            published=published,
            first_iteration=first_iteration,
            num_frames=num_frames,
            healing_since=healing_since[0] if healing_since else -1,
        )
