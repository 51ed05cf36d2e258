"""The test of one series is what its densities say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evenkeel.offline.series.evidence import NUM_TESTS, SMALL_SHIFTS, SeriesEvidence
from evenkeel.offline.series.noise import Noise
from evenkeel.offline.series.pauses import Pauses

SLOWER, FASTER, ONE_STEP = 15.0, 8.0, 0.36


def by_densities(values: list[float], noise: Noise, pauses: Pauses) -> tuple[list[bool], np.ndarray]:
    """Decisions after each value, and the sums at the end; a side a row."""
    sums, decided = np.zeros((2, NUM_TESTS)), []
    low = min(max(0.06, 3 * noise.scale), 1.0)
    for value in values:
        for side, (sign, height) in enumerate(((1.0, SLOWER), (-1.0, FASTER))):
            z = sign * value
            null = stats.t.logpdf(z, noise.freedom, scale=noise.scale)
            shifted = [stats.t.logpdf(z - shift, noise.freedom, scale=noise.scale) for shift in SMALL_SHIFTS]
            large = 0.05 * stats.cauchy.pdf(z) + (0.95 / (z * np.log(3.0 / low)) if low <= z <= 3.0 else 0.0)
            ratios = np.array([*shifted, np.log(large)]) - null
            less = -np.logaddexp(np.log1p(-pauses.share) - ratios, np.log(pauses.share))
            sums[side] = np.maximum(sums[side] + np.minimum(less, ONE_STEP * height), 0.0)
        decided.append(bool(sums[0].max() >= SLOWER or sums[1].max() >= FASTER))
    return decided, sums


@given(
    st.lists(st.floats(-4, 4) | st.floats(-0.1, 0.1), min_size=1, max_size=30),
    st.floats(0.003, 0.5),
    st.sampled_from([2.0, 4.0, 6.0]),
    st.floats(0.001, 0.3),
)
def test_it_decides_as_the_densities_say(values: list[float], scale: float, freedom: float, share: float) -> None:
    noise, pauses = Noise(scale=scale, freedom=freedom), Pauses(share=share)
    test = SeriesEvidence()
    test.expect(noise, pauses)
    decided, sums = by_densities(values, noise, pauses)
    assert [test.advance(value, slower=SLOWER, faster=FASTER) for value in values] == decided
    assert test.highest == pytest.approx(sums.max(), abs=1e-9)


def test_evidence_counts_the_iterations_since_it_began_and_is_forgotten_when_cleared() -> None:
    test = SeriesEvidence()
    test.expect(Noise(scale=0.01, freedom=4.0), Pauses())
    for value in (0.0, -0.01, 0.1, 0.11, 0.1):
        test.advance(value, slower=SLOWER, faster=FASTER)
    nats, age = test.decisive()
    assert age == test.age_of_highest == 3
    assert nats == test.highest > 3
    test.clear()
    assert test.highest == 0.0
    assert not test.advance(0.1, slower=SLOWER, faster=FASTER)
    assert test.age_of_highest == 1
