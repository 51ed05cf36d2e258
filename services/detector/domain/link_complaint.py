"""What was told of a link, an endpoint or a group, for as long as it is not over."""

from dataclasses import dataclass


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
