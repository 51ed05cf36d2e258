import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.offline.series.expected.rhythm import Rhythm


@given(st.integers(2, 8), st.integers(0, 10_000), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_turns_that_differ_by_far_more_than_noise_are_found(period: int, first: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    turns = np.zeros(period)
    turns[random.permutation(period)[: max(period // 2, 1)]] = 0.5
    numbers = np.arange(first, first + 96, dtype=np.float64)
    rhythm = Rhythm()
    logs = 1.0 + turns[numbers.astype(np.int64) % period] + 0.01 * random.standard_normal(96)
    assert rhythm.look(numbers, logs)
    left = logs - rhythm.longer_each(numbers)
    assert float(left.max() - left.min()) < 0.1
    assert rhythm.longer(first) == rhythm.longer_each(numbers)[0]
    assert not rhythm.look(numbers, logs)


@given(st.integers(0, 10_000), st.floats(0.001, 0.5), st.sampled_from([24, 128]))
@settings(max_examples=60, deadline=None)
def test_noise_and_chance_have_no_rhythm(seed: int, scale: float, count: int) -> None:
    random = np.random.default_rng(seed)
    logs = scale * random.standard_normal(count) + 0.4 * (random.random(count) < 0.3)
    rhythm = Rhythm()
    assert not rhythm.look(np.arange(count, dtype=np.float64), logs)
    assert rhythm.longer(17) == 0.0
