"""What is kept from frame to frame only saves work: whoever works everything out anew finds the same, to the bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.device_health import DeviceHealth
from evenkeel.services.detector.domain.device_levels import HealthChange
from evenkeel.services.detector.domain.job import JobDetector
from tests.unit.detector.synthetic import Noise, SyntheticJob, cube, gaussian, student

NUM_DEVICES = 8


def residuals(noise: Noise, slow: Callable[[int], float]) -> np.ndarray:
    """Log ratios of eight devices, one row an iteration; the third is slower by what ``slow`` says."""
    found = noise(np.random.default_rng(7), (260, NUM_DEVICES))
    found[:, 2] += [slow(iteration) for iteration in range(len(found))]
    return found


def judged(log_ratios: np.ndarray, rows_of: Callable[[np.ndarray], np.ndarray]) -> tuple[list[HealthChange], Any]:
    """What a health finds in them, and its state; ``rows_of`` makes each frame's rows of those that were located."""
    health = DeviceHealth(iterations_per_false_alarm=1e5)
    frame = next(iter(SyntheticJob(places=cube()).frames(0, 1)))
    found = []
    for iteration, row in enumerate(log_ratios):
        rows = health.bank.locate(frame, num_to_baseline=5, num_to_skip=0)
        found += health.observe(iteration, rows_of(rows), row, np.ones(NUM_DEVICES))
    return found, dump(health)


@pytest.mark.parametrize("noise", [gaussian(0.01), student(0.02, 2.5)], ids=["gaussian", "heavy"])
@pytest.mark.parametrize(
    "slow",
    [lambda _: 0.0, lambda at: 0.3 if 120 <= at < 180 else 0.0, lambda at: 0.06 if at >= 150 else 0.0],
    ids=["healthy", "ill for a while", "a little slow"],
)
def test_all_devices_at_once_and_one_by_one_are_judged_alike(noise: Noise, slow: Callable[[int], float]) -> None:
    log_ratios = residuals(noise, slow)
    at_once = judged(log_ratios, lambda rows: rows)
    picked = judged(log_ratios, lambda rows: rows.copy())
    assert at_once == picked


def test_the_cases_above_have_something_to_find() -> None:
    log_ratios = residuals(gaussian(0.01), lambda at: 0.3 if 120 <= at < 180 else 0.0)
    assert [(change.row, change.recovered) for change in judged(log_ratios, lambda rows: rows)[0]] == [
        (2, False),
        (2, True),
    ]


def test_terms_that_lasted_end_when_a_device_gets_other_work() -> None:
    """A new baseline makes a device young again in its offset: what was kept must not outlive it."""

    def run(restored_at: int | None) -> Any:
        detector = JobDetector("job")
        first = SyntheticJob(places=cube(), seed=4).frames(0, 160)
        second = SyntheticJob(places=cube(), quotas=(5, 3), seed=5, epoch=1).frames(160, 230)
        for number, frame in enumerate([*first, *second]):
            if number == restored_at:
                state = dump(detector)
                detector = JobDetector("job")
                load(detector, state)
            detector.observe(frame)
        return dump(detector)

    through = run(None)
    assert all(run(restored_at) == through for restored_at in (150, 161, 166, 200))
