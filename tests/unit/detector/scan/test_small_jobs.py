"""Jobs of few ranks, two stages of two: noise that lingers is known for what it is, and baselines are put right."""

import numpy as np
import pytest

from benchmarks.detection.aspects.small_jobs import changes_of
from tests.unit.detector.synthetic import contended, wandering

WORK = (1.0, 1.0, 2.0, 2.0)


@pytest.mark.parametrize(("seed", "stop"), [(2003, 520), (2012, 120)])
def test_noise_that_lingers_for_dozens_of_iterations_accuses_nobody(seed: int, stop: int) -> None:
    """Seen at a correlation of 0.97: its mean square, known from a few excursions, was believed as if from dozens."""
    noise = wandering(0.03, 0.97)(np.random.default_rng((seed, 545)), (stop, 4))
    assert list(changes_of(noise, WORK)) == []


def test_a_baseline_that_was_taken_in_a_fast_spell_is_put_right() -> None:
    """Seen over 2,000 iterations: suspected whenever it showed its usual speed, a device was never followed there."""
    log_ratios = contended(0.03, 0.8)(np.random.default_rng(4), (1_200, 4))
    log_ratios[:12, 1] -= 0.06
    assert list(changes_of(log_ratios, WORK)) == []
