"""A joiner under way, and what comes out of it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from evenkeel.contracts.frames import Frames
from evenkeel.services.telemetry.domain.joiner import FrameJoiner
from tests.unit.telemetry.samples import Sample, batches_of, sample


class Seen(NamedTuple):
    """One frame."""

    epoch: int
    iteration: int
    ranks: list[int]
    missing: list[int]


def seen(closed: Iterable[Frames]) -> list[Seen]:
    """Frame by frame."""
    found = []
    for frames in closed:
        for place, iteration in enumerate(frames.iteration.tolist()):
            present = frames.present[place]
            ranks, missing = frames.members.rank[present], frames.members.rank[~present]
            found.append(Seen(frames.epoch, iteration, ranks.tolist(), missing.tolist()))
    return found


def add(joiner: FrameJoiner, samples: Sequence[Sample], now_seconds: float) -> list[Frames]:
    """The frames that close when samples come together."""
    offsets = np.array([each.offset for each in samples], dtype=np.int64)
    return joiner.add(batches_of(samples), offsets, now_seconds)


def add_all(joiner: FrameJoiner, samples: Sequence[Sample], now_seconds: float) -> list[Seen]:
    """The frames that close while samples come one by one, all at one moment."""
    return seen(frames for each in samples for frames in add(joiner, [each], now_seconds))


def settled_joiner(num_ranks: int) -> FrameJoiner:
    """A joiner that has closed iterations 0 and 1 with all ranks."""
    joiner = FrameJoiner()
    assert add_all(joiner, [sample(rank, 0) for rank in range(num_ranks)], 0.0) == []
    closed = add_all(joiner, [sample(rank, 1) for rank in range(num_ranks)], 0.1)
    assert closed == [Seen(0, iteration, list(range(num_ranks)), []) for iteration in (0, 1)]
    return joiner
