"""Who did not arrive? From a picture of where every rank stands while nothing moves.

The ranks that wait are victims. The culprit is the one that others wait for and that is itself not waiting: stuck in an
operation of its own, or not heard from at all. Heartbeats clear nobody: only a moving operation count does. Where
everybody waits for somebody who waits, a link or a mismatched collective is at fault: those whom all others wait for in
the end, and who wait for one another, are the ones to do without. Ranks that are parked for a recovery wait, too: for
those that neither park nor move, without whom there is none.
"""

from dataclasses import dataclass

import numpy as np

from evenkeel.services.detector.domain.frames.observation import RankProgress

SHORTEST_SECONDS = 1.5
ITERATIONS = 2.5
BEFORE_FIRST_FRAME_SECONDS = 60.0
AFTER_RESHAPE_SECONDS = 5.0
OWN_WORK_SECONDS = 120.0
"""For a rank of a loop of a user's own that computes nothing and waits for nobody: it may save, evaluate or log."""
RESHAPING_SECONDS = 10.0
"""For one that goes over to another layout and neither waits for others, moves a slice nor reads a checkpoint."""
CIRCLE_SECONDS = 60.0
"""For ranks that wait for one another: what they wait for may only be slow."""

PLANNED_OPERATIONS = frozenset(
    ("", "starting", "standby", "parked", "reshape", "evaluation", "checkpoint", "finishing", "finished")
)
"""Operations that a rank may be in for long by design; the part before a colon counts. Empty: it never said any."""

_IDLE_OPERATIONS = ("parked", "standby")
"""Of those, the ones in which a rank waits to be told what to do: it is heard from all the time, or has stopped."""

_ALLOWED_SECONDS = {
    "iteration": OWN_WORK_SECONDS,
    "between iterations": OWN_WORK_SECONDS,
    "reshaping": RESHAPING_SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A rank that others wait for.

    Attributes:
        rank: Rank.
        incarnation: Its incarnation.
        iteration: Iteration it is stuck in.
        operation: Operation it did not leave.
        stuck_seconds: For how long.
        silent: Nothing is heard from it; otherwise it talks and does not move.
        victims: Ranks that wait.
        named: How many of them name it as the one they wait for.
    """

    rank: int
    incarnation: int
    iteration: int
    operation: str
    stuck_seconds: float
    silent: bool
    victims: tuple[int, ...]
    named: int


def patience_seconds(iteration_seconds: float, *, same_epoch: bool) -> float:
    """How long a rank may stand still before it is called stuck.

    Args:
        iteration_seconds: The job's usual iteration; 0 before the first frame.
        same_epoch: The rank stands in the epoch that the last frame ran under; else it is still being reshaped.
    """
    if iteration_seconds <= 0:
        return BEFORE_FIRST_FRAME_SECONDS
    patience = max(SHORTEST_SECONDS, ITERATIONS * iteration_seconds)
    return patience if same_epoch else max(patience, AFTER_RESHAPE_SECONDS)


def find_hangs(picture: tuple[RankProgress, ...], *, iteration_seconds: float, epoch: int) -> list[Hang]:
    """The ranks that hold up the others, most certain first; empty while nobody has waited long enough.

    Args:
        picture: Newest progress of every rank that is not known to be dead.
        iteration_seconds: The job's usual iteration; 0 before the first frame.
        epoch: Epoch of the last frame.
    """
    victims = []
    suspects = []
    parked = [
        one
        for one in picture
        if one.operation == "parked"
        and one.seconds_since_heard < AFTER_RESHAPE_SECONDS
        and one.seconds_since_moved >= AFTER_RESHAPE_SECONDS
    ]
    for one in picture:
        idle = one.operation in _IDLE_OPERATIONS
        patience = patience_seconds(iteration_seconds, same_epoch=one.epoch == epoch and not idle)
        silent = one.seconds_since_heard >= patience
        if one.seconds_since_moved < patience and not silent:
            continue
        if one.operation.split(":")[0] in PLANNED_OPERATIONS and not (silent and idle):
            continue
        if not silent and _stands(one) < _ALLOWED_SECONDS.get(one.operation, 0.0):
            continue
        if silent:
            suspects.append((one, True))
        elif _waits(one):
            victims.append(one)
        else:
            suspects.append((one, False))
    if not victims:
        victims = parked
        suspects = [(one, silent) for one, silent in suspects if _stands(one) >= AFTER_RESHAPE_SECONDS]
    if not suspects:
        circle = _circle(victims)
        suspects = [(one, False) for one in victims if one.rank in circle and _stands(one) >= CIRCLE_SECONDS]
        victims = [one for one in victims if one.rank not in circle]
    if not victims:
        return []
    waiting = tuple(sorted(one.rank for one in victims))
    hangs = [
        Hang(
            rank=one.rank,
            incarnation=one.incarnation,
            iteration=one.iteration,
            operation=one.operation,
            stuck_seconds=_stands(one),
            silent=silent,
            victims=waiting,
            named=sum(one.rank in victim.waiting_for for victim in victims),
        )
        for one, silent in suspects
    ]
    # A silent rank may only have lost its way to the service: where victims name somebody, it must be one of the named.
    if any(hang.named for hang in hangs):
        hangs = [hang for hang in hangs if hang.named or not hang.silent]
    return sorted(hangs, key=lambda hang: (-hang.named, hang.rank))


def _circle(victims: list[RankProgress]) -> frozenset[int]:
    """Ranks that wait for one another, and for nobody else."""
    place = {one.rank: number for number, one in enumerate(victims)}
    outside = len(victims)  # one place for all whom victims wait for and who are none
    edges = [(place[one.rank], place.get(other, outside)) for one in victims for other in one.waiting_for]
    if not edges:
        return frozenset()
    from scipy.sparse import coo_array  # noqa: PLC0415 - a quarter of a second, which a start has no time for
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

    one, other = np.array(edges).T
    links = coo_array((np.ones(len(edges)), (one, other)), shape=(outside + 1,) * 2)
    _, part = connected_components(links, directed=True, connection="strong")
    leads_on = np.isin(part, part[one[part[one] != part[other]]])
    several = np.bincount(part)[part] > 1
    return frozenset(victims[number].rank for number in np.flatnonzero(several & ~leads_on).tolist())


def _stands(one: RankProgress) -> float:
    """For how long it has not been seen to move."""
    return max(one.seconds_since_moved, one.seconds_since_heard)


def _waits(one: RankProgress) -> bool:
    return one.operation.startswith("wait")
