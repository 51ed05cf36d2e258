"""The test of one series is the devices' test, number by number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.detector.domain import sequential_test
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.series.evidence import SeriesEvidence
from evenkeel.services.detector.domain.series.pauses import Pauses

SLOWER, FASTER, ONE_STEP = 15.0, 8.0, 0.36


def by_arrays(values: list[float], noise: Noise, pauses: Pauses) -> tuple[list[bool], np.ndarray]:
    """Decisions after each value, and the sums at the end; a side a row."""
    sums = np.zeros((2, sequential_test.NUM_TESTS))
    ages, decided = np.zeros(sums.shape, dtype=np.int64), []
    for value in values:
        for side, (sign, height) in enumerate(((1.0, SLOWER), (-1.0, FASTER))):
            z, scale = np.array([sign * value]), np.array([noise.scale])
            ratios = pauses.discounted(sequential_test.log_ratios(z, scale, noise.freedom))
            ratios = np.minimum(ratios, ONE_STEP * height)
            sequential_test.advance(sums[side : side + 1], ages[side : side + 1], ratios, np.array([height]))
        decided.append(bool(sums[0].max() >= SLOWER or sums[1].max() >= FASTER))
    return decided, sums


@given(
    st.lists(st.floats(-4, 4) | st.floats(-0.1, 0.1), min_size=1, max_size=30),
    st.floats(0.003, 0.5),
    st.sampled_from([2.0, 4.0, 6.0]),
    st.floats(0.001, 0.3),
)
def test_it_decides_as_the_test_on_arrays_does(values: list[float], scale: float, freedom: float, share: float) -> None:
    noise, pauses = Noise(scale=scale, freedom=freedom), Pauses(share=share)
    test = SeriesEvidence()
    test.expect(noise, scale, pauses)
    decided, sums = by_arrays(values, noise, pauses)
    assert [test.advance(value, slower=SLOWER, faster=FASTER) for value in values] == decided
    assert test.highest == pytest.approx(sums.max(), abs=1e-9)


def test_evidence_counts_the_iterations_since_it_began_and_is_forgotten_when_cleared() -> None:
    test = SeriesEvidence()
    test.expect(Noise(scale=0.01, freedom=4.0), 0.01, Pauses())
    for value in (0.0, -0.01, 0.1, 0.11, 0.1):
        test.advance(value, slower=SLOWER, faster=FASTER)
    nats, age = test.decisive()
    assert age == test.age_of_highest == 3
    assert nats == test.highest > 3
    test.clear()
    assert test.highest == 0.0
    assert not test.advance(0.1, slower=SLOWER, faster=FASTER)
    assert test.age_of_highest == 1
