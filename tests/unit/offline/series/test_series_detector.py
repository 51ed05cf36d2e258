import numpy as np
import pytest

from evenkeel.offline.series.finding import Iteration, SeriesVerdict, SeriesVerdictKind
from evenkeel.offline.series.series import SeriesDetector


def verdicts(seconds: np.ndarray, **columns: np.ndarray) -> list[SeriesVerdict]:
    detector = SeriesDetector("job")
    found = []
    for i, taken in enumerate(seconds.tolist()):
        extra = {name: column[i].item() for name, column in columns.items()}
        found += detector.observe(Iteration(iteration=i, seconds=taken, **extra))
    return found


def noise(kind: str, count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    match kind:
        case "gaussian":
            return 0.01 * random.standard_normal(count)
        case "heavy":
            return 0.01 * random.standard_t(2.5, count)
        case "drifting":
            return 0.005 * random.standard_normal(count) + 0.015 * np.sin(np.arange(count) / 300)
        case "wide":
            return 0.2 * random.standard_normal(count)
        case "pausing":
            return 0.003 * random.standard_normal(count) + 0.4 * random.random(count) * (random.random(count) < 0.1)
        case "two modes":
            return 0.003 * random.standard_normal(count) + 0.1 * (random.random(count) < 0.1)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "drifting", "wide", "pausing", "two modes"])
def test_healthy_noise_of_many_shapes_gives_no_verdict(kind: str) -> None:
    assert verdicts(2.0 * np.exp(noise(kind, 3000))) == []


@pytest.mark.parametrize(("size", "within"), [(1.05, 12), (1.10, 5), (1.25, 4)])
def test_a_lasting_slowdown_is_found_soon_and_measured(size: float, within: int) -> None:
    seconds = 3.0 * np.exp(noise("gaussian", 300, seed=3))
    seconds[150:] *= size
    first = verdicts(seconds)[0]
    assert first.kind is SeriesVerdictKind.JOB_SLOW
    assert 150 <= first.decided_iteration < 150 + within
    assert abs(first.first_iteration - 150) <= 2
    assert 1 / first.throughput == pytest.approx(size, abs=0.02)


@pytest.mark.parametrize("size", [1.10, 1.25])
@pytest.mark.parametrize("seed", range(4))
def test_pauses_now_and_then_hide_no_slowdown(size: float, seed: int) -> None:
    seconds = np.exp(noise("pausing", 400, seed=seed))
    seconds[200:] *= size
    found = verdicts(seconds)
    assert {one.kind for one in found} == {SeriesVerdictKind.JOB_SLOW}
    assert 200 <= found[0].decided_iteration < 220
    # Pauses among the first slow iterations are taken for part of it, until more is known.
    assert 1 / found[-1].throughput == pytest.approx(size, abs=0.12)


@pytest.mark.parametrize("size", [1.05, 1.25])
def test_stalls_of_a_few_iterations_hide_no_later_slowdown(size: float) -> None:
    seconds = np.exp(noise("gaussian", 420, seed=10))
    for start in (120, 230):
        seconds[start : start + 3] *= 1.4
    seconds[300:] *= size
    found = [one for one in verdicts(seconds) if one.first_iteration >= 290]
    assert [one.kind for one in found] == [SeriesVerdictKind.JOB_SLOW]
    assert 300 <= found[0].decided_iteration < 325
    assert 1 / found[0].throughput == pytest.approx(size, abs=0.02)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("factor", [1.3, 4.0, 100.0])
def test_one_or_two_slow_iterations_are_no_verdict(factor: float, length: int) -> None:
    seconds = np.exp(noise("gaussian", 400, seed=4))
    for start in (100, 180, 181 + length, 300):
        seconds[start : start + length] *= factor
    assert verdicts(seconds) == []


def test_a_job_that_is_fast_again_has_recovered() -> None:
    seconds = np.exp(noise("gaussian", 400, seed=5))
    seconds[150:250] *= 1.2
    found = verdicts(seconds)
    assert [one.kind for one in found] == [SeriesVerdictKind.JOB_SLOW, SeriesVerdictKind.JOB_RECOVERED]
    assert 250 <= found[1].decided_iteration < 260


def test_a_restart_that_warms_up_is_no_verdict_and_hides_no_slowdown_for_long() -> None:
    seconds = np.exp(noise("gaussian", 400, seed=11))
    seconds[200:] *= 1 + 0.4 * np.exp(-np.arange(200) / 5)
    numbers = np.concatenate([np.arange(200), np.arange(180, 380)])

    def found(factor: float) -> list[SeriesVerdict]:
        detector = SeriesDetector("job")
        slowed = np.where(np.arange(400) < 200, seconds, factor * seconds)
        rows = zip(numbers.tolist(), slowed.tolist(), strict=True)
        return [one for i, taken in rows for one in detector.observe(Iteration(iteration=i, seconds=taken))]

    assert found(1.0) == []
    assert [one.kind for one in found(1.1)] == [SeriesVerdictKind.JOB_SLOW]
    assert 180 <= found(1.1)[0].first_iteration <= found(1.1)[0].decided_iteration < 220


@pytest.mark.parametrize("num_to_warm_up", [40, 100])
def test_a_restart_that_warms_up_for_long_is_no_verdict_and_what_stays_is_told(num_to_warm_up: int) -> None:
    seconds = np.exp(noise("gaussian", 1200, seed=15))
    seconds[500:] *= np.exp(0.4 * np.exp(-np.arange(700) / (num_to_warm_up / 3)))
    numbers = np.concatenate([np.arange(500), np.arange(460, 1160)])

    def found(factor: float) -> list[SeriesVerdict]:
        detector = SeriesDetector("job")
        slowed = np.where(np.arange(1200) < 500, seconds, factor * seconds)
        rows = zip(numbers.tolist(), slowed.tolist(), strict=True)
        return [one for i, taken in rows for one in detector.observe(Iteration(iteration=i, seconds=taken))]

    assert found(1.0) == []
    assert found(1.1)[0].kind is SeriesVerdictKind.JOB_SLOW
    assert found(1.1)[0].decided_iteration < 460 + 2.5 * num_to_warm_up


@pytest.mark.parametrize("period", [2, 3, 4])
def test_iterations_that_take_longer_by_turns_hide_no_slowdown(period: int) -> None:
    seconds = np.exp(noise("gaussian", 700, seed=16))
    seconds[period - 1 :: period] *= 1.6
    assert verdicts(seconds) == []
    seconds[400:] *= 1.05
    first = verdicts(seconds)[0]
    assert 400 <= first.decided_iteration < 412
    assert 1 / first.throughput == pytest.approx(1.05, abs=0.02)


def test_turns_that_begin_later_are_learned_and_hide_no_slowdown_for_ever() -> None:
    seconds = np.exp(noise("gaussian", 1200, seed=17))
    seconds[300:][3::4] *= 1.6
    seconds[800:] *= 1.1
    found = [one for one in verdicts(seconds) if one.decided_iteration >= 700]
    assert [one.kind for one in found] == [SeriesVerdictKind.JOB_SLOW]
    assert 800 <= found[0].decided_iteration < 812


def test_an_evaluation_that_nobody_marked_is_told_once_and_hides_no_slowdown() -> None:
    seconds = np.exp(noise("gaussian", 800, seed=9))
    for start in range(100, 700, 100):
        seconds[start : start + 5] *= 1.5
    seconds[640:] *= 1.1
    found = verdicts(seconds)
    assert [(one.kind.value, one.first_iteration) for one in found[:2]] == [("job_slow", 100), ("job_recovered", 105)]
    assert found[2].kind is SeriesVerdictKind.JOB_SLOW
    assert 640 <= found[2].decided_iteration < 655


def test_planned_pauses_are_left_out() -> None:
    seconds = np.exp(noise("gaussian", 300, seed=6))
    planned = np.zeros(300, dtype=bool)
    planned[150:170] = True
    seconds[planned] *= 3.0
    assert verdicts(seconds, planned=planned) == []
    assert verdicts(seconds)[0].first_iteration == 150


def test_a_workload_that_explains_the_time_is_no_slowdown() -> None:
    random = np.random.default_rng(7)
    tokens = random.integers(20_000, 33_000, 600).astype(float)
    squares = tokens * random.lognormal(7, 0.5, 600)
    squares[300:420] *= 3.0
    seconds = (2e-5 * tokens + 2e-9 * squares + 0.05) * np.exp(0.01 * random.standard_normal(600))
    assert verdicts(seconds, tokens=tokens, sum_of_squares=squares) == []
    seconds[500:] *= 1.1
    first = verdicts(seconds, tokens=tokens, sum_of_squares=squares)[0]
    assert 500 <= first.decided_iteration < 508


@pytest.mark.parametrize("fixed_share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("jump", [0.5, 2.0])
@pytest.mark.parametrize("size", [1.0, 1.05])
def test_a_workload_unlike_any_before_is_learned_and_hides_no_later_slowdown(
    fixed_share: float, jump: float, size: float
) -> None:
    random = np.random.default_rng(8)
    tokens = 1e5 * random.uniform(0.9, 1.1, 600)
    tokens[300:] *= jump
    squares = tokens * random.uniform(400, 600, 600)
    seconds = fixed_share + (1 - fixed_share) * (8e-6 * tokens + 4e-9 * squares)
    seconds[450:] *= size
    found = verdicts(seconds * np.exp(noise("gaussian", 600, seed=8)), tokens=tokens, sum_of_squares=squares)
    slow = [one for one in found if one.kind is SeriesVerdictKind.JOB_SLOW]
    assert all(one.first_iteration >= 447 for one in slow)
    assert bool(slow) == (size > 1)


def test_a_slowdown_that_creeps_in_is_found_once_it_is_more_than_drift() -> None:
    seconds = np.exp(noise("gaussian", 1200, seed=8) / 2)
    seconds[300:] *= np.exp(np.minimum(np.arange(900) / 400 * 0.10, 0.10))
    found = verdicts(seconds)
    assert found
    assert found[0].kind is SeriesVerdictKind.JOB_SLOW
    assert found[0].decided_iteration < 800


@pytest.mark.parametrize("seed", range(4))
def test_a_tenth_that_creeps_in_over_two_hundred_iterations_is_found_while_it_does(seed: int) -> None:
    seconds = np.exp(noise("gaussian", 900, seed=20 + seed))
    seconds[400:] *= np.exp(np.minimum(np.arange(500) / 200, 1.0) * np.log(1.1))
    found = verdicts(seconds)
    assert {one.kind for one in found} == {SeriesVerdictKind.JOB_SLOW}
    assert 400 < found[0].decided_iteration < 610
    # Not what it was above the newest past, which had followed it.
    assert 1.05 < 1 / found[-1].throughput < 1.11


def wandering(share: float, scale: float, count: int, seed: int) -> np.ndarray:
    """First-order autoregression: log units of time."""
    random, found = np.random.default_rng(seed), np.zeros(count)
    for i in range(1, count):
        found[i] = share * found[i - 1] + scale * np.sqrt(1 - share**2) * random.standard_normal()
    return found


def test_noise_that_wanders_is_seldom_a_verdict() -> None:
    slow = [
        one
        for seed in range(12)
        for one in verdicts(2.0 * np.exp(wandering(0.95, 0.03, 1500, seed)))
        if one.kind is SeriesVerdictKind.JOB_SLOW
    ]
    assert len(slow) <= 10  # 23 by the test alone, which knows no more of noise than its last 128 iterations


@pytest.mark.parametrize("size", [1.1, 1.25])
def test_a_slowdown_stands_out_of_noise_that_wanders_a_little(size: float) -> None:
    seconds = np.exp(wandering(0.8, 0.01, 600, seed=2))
    seconds[400:] *= size
    found = verdicts(seconds)
    assert [one.kind for one in found] == [SeriesVerdictKind.JOB_SLOW]
    assert 400 <= found[0].decided_iteration < 410


@pytest.mark.parametrize("numbers", [np.arange(800) + 600 * (np.arange(800) >= 400), np.arange(800)])
def test_a_restart_that_warms_up_is_no_verdict_where_numbers_jump_or_time_stands_still(numbers: np.ndarray) -> None:
    seconds = np.exp(noise("gaussian", 800, seed=12))
    seconds[400:403] *= [60.0, 2.0, 1.3]

    def found(factor: float) -> list[SeriesVerdict]:
        detector = SeriesDetector("job")
        slowed = np.where(np.arange(800) < 400, seconds, factor * seconds)
        rows = zip(numbers.tolist(), slowed.tolist(), strict=True)
        return [one for i, taken in rows for one in detector.observe(Iteration(iteration=i, seconds=taken))]

    assert found(1.0) == []
    assert [one.kind for one in found(1.05)] == [SeriesVerdictKind.JOB_SLOW]
    assert found(1.05)[0].decided_iteration <= numbers[430]


def test_numbers_that_are_left_out_now_and_then_put_no_verdict_off() -> None:
    numbers = np.cumsum(np.where(np.random.default_rng(13).random(400) < 0.1, 40, 1))
    seconds = np.exp(noise("gaussian", 400, seed=13))
    seconds[200:] *= 1.2
    detector = SeriesDetector("job")
    rows = zip(numbers.tolist(), seconds.tolist(), strict=True)
    found = [one for i, taken in rows for one in detector.observe(Iteration(iteration=i, seconds=taken))]
    assert [one.kind for one in found] == [SeriesVerdictKind.JOB_SLOW]
    assert numbers[200] <= found[0].decided_iteration <= numbers[230]


@pytest.mark.parametrize("length", [10, 20])
def test_a_long_evaluation_that_keeps_a_clock_is_told_twice_and_then_only_if_it_lasts(length: int) -> None:
    seconds = np.exp(noise("gaussian", 2600, seed=14))
    for start in range(300, 2400, 300):
        seconds[start : start + length] *= 1.4
    healthy = [one for one in verdicts(seconds) if one.kind is SeriesVerdictKind.JOB_SLOW]
    assert [one.first_iteration for one in healthy] == [300, 600]
    seconds[1500:1600] *= 1.4
    longer = [one for one in verdicts(seconds) if one.kind is SeriesVerdictKind.JOB_SLOW]
    assert any(1500 <= one.decided_iteration <= 1500 + length + 12 for one in longer)
