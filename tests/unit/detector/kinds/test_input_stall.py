"""Input stalls are told once, if they cost something."""

from dataclasses import replace

import numpy as np
import pytest

from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.kinds.input_stall import InputStall
from evenkeel.services.detector.domain.kinds.kind import Look
from tests.unit.detector.synthetic import SyntheticJob, cube


@pytest.mark.parametrize(
    ("data_shares", "is_told"),
    [
        pytest.param([0.056, 0, 0, 0] * 12, False, id="a busy machine's loader is late now and then"),
        pytest.param([0.056] * 48, True, id="a little in every iteration adds up"),
        pytest.param([0.3, 0, 0, 0] * 12, True, id="much, now and then"),
        pytest.param([0.9, *[0.0] * 15] * 6, False, id="once in sixteen iterations is no stall"),
    ],
)
def test_a_stall_is_told_once_and_only_if_it_costs_something(data_shares: list[float], is_told: bool) -> None:
    watch = InputStall()
    told = [found for i, share in enumerate(data_shares) for found in watch.observe(_look(i, share))]
    assert [found.ranks for found in told] == [(2,)] * is_told


def test_it_began_with_the_ranks_that_are_named() -> None:
    watch = InputStall()
    stalled = [(1, 0.2), (2, 0.0), (2, 0.2), (2, 0.2), (2, 0.2)]
    (found,) = [found for i, (rank, share) in enumerate(stalled) for found in watch.observe(_look(i, share, rank))]
    assert (found.ranks, found.first_iteration) == ((2,), 2)


def _look(iteration: int, share: float, rank: int = 2) -> Look:
    job = SyntheticJob(places=cube(), seed=1)
    frame = next(iter(job.frames(iteration, iteration + 1)))
    count = len(frame.ranks)
    wall_seconds = np.ones(count)
    frame = replace(frame, wall_seconds=wall_seconds, data_seconds=np.where(frame.ranks == rank, share, 0.0))
    everybody, nothing = np.ones(count, bool), np.zeros(count, bool)
    return Look(
        frame=frame,
        layout=FrameLayout(frame),
        usable=everybody,
        expected_seconds=None,
        residuals=np.full((count, 1), np.nan),
        ill=nothing,
        limit=12.0,
    )
