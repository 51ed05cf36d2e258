"""What an iteration and its micro-batches should take is foretold within a hundredth, and so is how sure that is."""

from dataclasses import fields

import numpy as np
import pytest

from benchmarks.detection.aspects.prediction import predict_trace
from benchmarks.detection.baselines.interval import Interval
from benchmarks.detection.baselines.iteration_time import IterationTime
from benchmarks.detection.traces.frames import frames_of
from benchmarks.detection.traces.traces import make_trace
from evenkeel.layouts.programs.schedules import one_f_one_b, zero_bubble_h1


def test_the_longest_path_of_equal_micro_batches_is_the_closed_form_of_1f1b() -> None:
    stages, batches = 4, range(8)
    programs = [[one_f_one_b(s, stages, list(batches)) for s in range(stages)]]
    seconds = [[dict.fromkeys(batches, (1.0, 2.0)) for _ in range(stages)]]
    assert IterationTime(programs).longest_path(seconds) == pytest.approx((len(batches) + stages - 1) * 3.0)


def test_a_backward_in_two_parts_is_not_counted_twice() -> None:
    stages, batches = 4, range(8)
    programs = [[zero_bubble_h1(s, stages, list(batches)) for s in range(stages)]]
    seconds = [[dict.fromkeys(batches, (1.0, 2.0)) for _ in range(stages)]]
    assert IterationTime(programs).longest_path(seconds) == pytest.approx(8 * 3.0 + 3 * 1.0)


def test_healthy_runs_are_foretold_and_intervals_hold() -> None:
    found = [predict_trace(make_trace(seed, shape="4x2x2", num_iterations=200)) for seed in range(4)]
    assert np.mean([one.micro_batch_error for one in found]) < 0.01
    assert np.mean([one.iteration_error for one in found]) < 0.02
    assert 0.92 < np.mean([one.held for one in found]) < 0.985


@pytest.mark.parametrize(
    "noise",
    [
        lambda rng: rng.normal(0, 0.02),
        lambda rng: 0.02 * rng.standard_t(3),
        lambda rng: rng.normal(0, 0.01) + (rng.random() < 0.05) * rng.exponential(0.2),
    ],
    ids=["gaussian", "student", "skewed"],
)
def test_an_interval_holds_95_percent_whatever_the_noise(noise) -> None:  # type: ignore[no-untyped-def]
    rng, interval, held = np.random.default_rng(3), Interval(), []
    for _ in range(5_000):
        error = abs(noise(rng))
        held.append(error <= interval.reach)
        interval.score(error)
    assert 0.93 <= np.mean(held[1_000:]) <= 0.97


def test_the_interval_of_a_short_run_that_starts_slowly_is_not_too_wide() -> None:
    rng, held = np.random.default_rng(5), []
    for _ in range(20):
        interval = Interval()
        for step in range(250):
            error = abs(2.0 * np.exp(-step / 6) + 0.004 * rng.standard_t(4))
            if step >= 60:
                held.append(error <= interval.reach)
            interval.score(error)
    assert 0.93 <= np.mean(held) <= 0.97


def test_frames_made_directly_are_those_that_the_messages_become() -> None:
    trace = make_trace(3, shape="4x2x2", num_iterations=5)
    for made, decoded in zip(frames_of(trace), trace.observations(), strict=True):
        for field in fields(made):
            one, other = getattr(made, field.name), getattr(decoded, field.name)
            if isinstance(one, np.ndarray):
                np.testing.assert_allclose(one, other, rtol=1e-12)
            elif field.name not in ("traffic", "micro_batches"):
                assert one == other, field.name
