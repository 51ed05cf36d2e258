"""Clocks of nodes, aligned from traffic that goes both ways."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.domain.links.transfers.clocks import ClockOffsets

PAIR = [("a", "b")]


def run(
    clocks: ClockOffsets,
    rng: np.random.Generator,
    *,
    offset: float,
    skew: float,
    first: int = 0,
    count: int = 24,
    transfer: float = 1e-3,
    noise: float = 0.05,
) -> tuple[float, float]:
    """Iterations of two seconds with eight messages each way; the last estimate and the truth."""
    found = truth = 0.0
    for iteration in range(first, first + count):
        at = 2.0 * iteration
        truth = offset + skew * at
        delays = transfer * (1.0 + noise * rng.exponential(1.0, (2, 8)))
        delays += np.where(rng.random((2, 8)) < 0.2, rng.exponential(0.02, (2, 8)), 0.0)
        rows = clocks.rows_of(PAIR)
        found = float(
            clocks.observe(at, rows, np.array([delays[0].min() + truth]), np.array([delays[1].min() - truth]))[0]
        )
    return found, truth


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-10.0, 10.0), st.floats(-1e-4, 1e-4))
def test_the_offset_is_found_within_a_tenth_of_a_transfer_whatever_offset_and_skew(seed, offset, skew):
    found, truth = run(ClockOffsets(), np.random.default_rng(seed), offset=offset, skew=skew)
    assert found == pytest.approx(truth, abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 5.0))
def test_a_clock_that_is_set_is_followed_at_once(seed, jump):
    clocks, rng = ClockOffsets(), np.random.default_rng(seed)
    run(clocks, rng, offset=0.0, skew=1e-5)
    found, truth = run(clocks, rng, offset=jump, skew=1e-5, first=24, count=1)
    assert found == pytest.approx(truth, abs=1e-3)


def test_the_skew_is_known_after_some_iterations() -> None:
    clocks = ClockOffsets()
    run(clocks, np.random.default_rng(1), offset=0.1, skew=5e-5)
    assert clocks.skews(clocks.rows_of(PAIR))[0] == pytest.approx(5e-5, abs=5e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-1.0, 1.0))
def test_no_estimate_says_that_a_message_arrived_before_it_was_sent(seed, offset):
    clocks, rng = ClockOffsets(), np.random.default_rng(seed)
    for iteration in range(20):
        forward = np.array([rng.exponential(1e-2) + offset])
        backward = np.array([rng.exponential(1e-2) - offset])
        found = clocks.observe(float(iteration), clocks.rows_of(PAIR), forward, backward)
        assert -backward[0] <= found[0] <= forward[0]
