"""What is to be told of links and groups, and what was told, for as long as it is not over."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFinding:
    """Somebody's transfers became slow, changed their speed, or recovered.

    Attributes:
        ranks: One is an endpoint, two are a link, more are a group.
        recovered: They are as before.
        throughput: Their speed, 1 = as before.
        margin: Half-width of its 95 % interval.
        first_iteration: First iteration that showed it.
        distance: Standard errors between that and healthy.
        num_observations: Iterations it rests on.
        scale: One iteration's noise, log units of time.
        expected_seconds: Of one operation, as it was before.
        measured_seconds: The same now, counted from the last arrival.
        peers: How others of its class stand against their own past, ratio.
        num_links: Links and groups that share the slowdown.
    """

    ranks: tuple[int, ...]
    recovered: bool
    throughput: float
    margin: float
    first_iteration: int
    distance: float
    num_observations: int
    scale: float
    expected_seconds: float
    measured_seconds: float
    peers: float
    num_links: int


@dataclass(slots=True, kw_only=True)
class LinkComplaint:
    """What was told of some rows of links and groups and is not over.

    Attributes:
        ranks: One is an endpoint, two are a link, more are a group.
        rows: The rows that share the slowdown.
        slow: Those of them that are slow by themselves.
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
