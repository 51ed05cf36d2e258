"""A joiner under way, and what comes out of it."""

from evenkeel.services.telemetry.domain.frame_rules import FrameRules
from evenkeel.services.telemetry.domain.frames import FrameJoiner
from evenkeel.services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from tests.unit.telemetry.samples import sample


def settled_joiner(num_ranks: int, *, rules: FrameRules | None = None) -> FrameJoiner:
    """A joiner that has closed iteration 0 with all ranks; iteration 1 has begun with rank 0 up to the last but one."""
    joiner = FrameJoiner(rules)
    for rank in range(num_ranks):
        assert joiner.add(sample(rank, 0), 0.0) == []
    closed: list[ClosedFrame] = []
    for rank in range(num_ranks):
        closed += joiner.add(sample(rank, 1), 0.1)
    assert [(each.iteration, ranks_of(each), each.missing_ranks) for each in closed] == [
        (0, list(range(num_ranks)), ()),
        (1, list(range(num_ranks)), ()),
    ]
    return joiner


def ranks_of(frame: ClosedFrame) -> list[int]:
    """Who is in a frame."""
    return [entry.rank for entry in frame.entries]


def add_all(joiner: FrameJoiner, samples: list[ArrivedSample], now_seconds: float) -> list[ClosedFrame]:
    """The frames that close while samples come one by one, all at one moment."""
    return [frame for each in samples for frame in joiner.add(each, now_seconds)]
