"""Of what a rank waits for a core the part that its quota is to blame for."""

import numpy as np
import pytest

from evenkeel.services.detector.domain.scan.residual.throttling import Throttling

RANKS = np.arange(2)
WALL_SECONDS = 0.05


def held_seconds(queued: np.ndarray, throttled: np.ndarray, *, read_every: int) -> np.ndarray:
    """What is held of rank 1 in each iteration; rank 0 waits as long, and nobody reads its control group.

    Args:
        queued: Seconds that it waits in each.
        throttled: Seconds of those that a quota takes.
        read_every: Iterations between two readings.
    """
    throttling, totals = Throttling(), np.cumsum(throttled)
    found = []
    for iteration, (waits, total) in enumerate(zip(queued, totals, strict=True)):
        readings = None if iteration % read_every else np.array([[1.0, total]])
        held = throttling.held(RANKS, np.full(2, waits), np.full(2, WALL_SECONDS), readings)
        assert held[0] == 0.0
        found.append(held[1])
    return np.array(found)


@pytest.mark.parametrize("read_every", [1, 4, 20])
@pytest.mark.parametrize("others", [0.0, 0.2])
def test_of_a_quota_all_is_held_and_of_others_nothing(read_every: int, others: float) -> None:
    rng = np.random.default_rng(0)
    throttled = rng.choice([0.0, 0.04], 400)
    queued = throttled + others * rng.gamma(2.0, 0.01, 400)

    held = held_seconds(queued, throttled, read_every=read_every)

    assert (held <= queued).all()
    assert held.sum() == pytest.approx(throttled.sum(), rel=0.1)


def test_a_quota_that_ends_holds_nothing_from_then_on_though_its_end_is_told_late() -> None:
    queued = np.r_[np.full(100, 0.02), np.full(100, 1e-4)]

    held = held_seconds(queued, np.r_[np.full(100, 0.02), np.zeros(100)], read_every=4)

    assert held[100:].max() <= 1e-4


def test_a_quota_shows_in_the_iterations_that_wait_and_in_no_other() -> None:
    queued = np.tile([0.04, 0.0, 0.04], 100)

    held = held_seconds(queued, queued, read_every=4)

    assert held[30:] == pytest.approx(queued[30:], rel=0.35)


def test_a_counter_that_begins_anew_takes_nothing_back() -> None:
    throttling, one = Throttling(), np.ones(1)
    for total in (5.0, 6.0, 0.0, 1.0):
        held = throttling.held(np.zeros(1, dtype=np.int64), one, 0.1 * one, np.array([[0.0, total]]))

    assert 0.0 < held[0] <= 1.0


def test_who_does_not_know_how_long_it_waited_is_not_known_to_be_held() -> None:
    throttling, one = Throttling(), np.ones(1)
    ranks, reading = np.zeros(1, dtype=np.int64), np.array([[0.0, 1.0]])

    assert np.isnan(throttling.held(ranks, np.nan * one, np.nan * one, reading))
    assert throttling.held(ranks, one, one, np.array([[0.0, 1.5]])) == pytest.approx([0.5])
