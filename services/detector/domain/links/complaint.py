"""What changed of links and groups, what is to be told of that, and what was told, for as long as it is not over."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """A row of the bank whose level changed.

    Attributes:
        row: Its row.
        recovered: It was slow and is as before; otherwise it is slow, or slow in another measure.
        level: Log slowdown now.
        first_iteration: First iteration that showed it.
        nats: Log-likelihood ratio behind the decision.
        num_observations: Iterations the level rests on.
    """

    row: int
    recovered: bool
    level: float
    first_iteration: int
    nats: float
    num_observations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFinding:
    """Somebody's transfers became slow, changed their speed, or recovered.

    Attributes:
        ranks: One is an endpoint, two are a link, more are a group.
        recovered: They are as before.
        throughput: Their speed, 1 = as before.
        margin: Half-width of its 95 % interval.
        first_iteration: First iteration that showed it.
        nats: Log-likelihood ratio behind the decision.
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
    nats: float
    num_observations: int
    scale: float
    expected_seconds: float
    measured_seconds: float
    peers: float
    num_links: int


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
