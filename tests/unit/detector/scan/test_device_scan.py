import pickle
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.domain.scan.devices import DeviceScan
from evenkeel.services.detector.domain.scan.residual.clocks import Clock, Readings, smallest_scales
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange

WORK_SECONDS = 0.02
CLOCKS = (Clock.WORK, Clock.BLOCKED, Clock.WAITING)


@dataclass(frozen=True)
class Job:
    """Seconds of each clock of a job; shapes are those of real loops on shared cores."""

    num_devices: int
    num_frames: int = 600
    seed: int = 0

    def readings(self, *, work: float = 1.0, blocked: float = 0.0, waiting: float = 0.0, begin: int = 0) -> np.ndarray:
        """Frames, clocks, devices; device 1 has the fault from ``begin`` on."""
        rng = np.random.default_rng(self.seed)
        shape = self.num_frames, self.num_devices
        seconds = np.empty((self.num_frames, 3, self.num_devices))
        seconds[:, 0] = WORK_SECONDS * np.exp(0.02 * rng.standard_normal(shape))
        seconds[:, 1] = 3e-4 * np.abs(rng.standard_t(3, shape))
        seconds[:, 2] = 0.004 * rng.gamma(2.0, 1.0, shape)
        seconds[begin:, 0, 1] *= work
        seconds[begin:, 1, 1] += blocked
        seconds[begin:, 2, 1] += waiting
        return seconds


def scan_of(num_devices: int) -> DeviceScan:
    scan = DeviceScan(1e5)
    scan.allot(CLOCKS, num_devices, smallest_scales(CLOCKS, WORK_SECONDS))
    return scan


def observe(scan: DeviceScan, seconds: np.ndarray, first: int = 0) -> list[tuple[int, SpeedChange]]:
    found = []
    for frame, (work, blocked, waiting) in enumerate(seconds, first):
        readings = Readings(work_seconds=work, blocked_seconds=blocked, waiting_seconds=waiting)
        changes = scan.observe(frame, readings.log_ratios(np.full(len(work), WORK_SECONDS)), WORK_SECONDS)
        found += [(frame, change) for change in changes]
    return found


@cache
def healthy_so_far(num_devices: int) -> bytes:
    """A scan of a job's first half, in which nobody is accused."""
    scan = scan_of(num_devices)
    assert observe(scan, Job(num_devices).readings()[:300]) == []
    return pickle.dumps(scan)


@pytest.mark.parametrize("num_devices", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("fault", "clock", "throughput"),
    [
        ({"work": 1.15}, Clock.WORK, 1 / 1.15),
        ({"work": 2.0}, Clock.WORK, 0.5),
        ({"blocked": 0.02}, Clock.BLOCKED, 0.5),
        ({"waiting": 0.04}, Clock.WAITING, 1 / 3),
    ],
)
def test_each_fault_is_told_of_its_device_and_clock(
    num_devices: int, fault: dict[str, float], clock: Clock, throughput: float
) -> None:
    seconds = Job(num_devices).readings(**fault, begin=300)
    found = observe(pickle.loads(healthy_so_far(num_devices)), seconds[300:], 300)
    frame, change = found[0]
    assert 300 < frame < 320
    assert {change.device for _, change in found} == {1}
    assert change.clock is clock
    assert change.first_iteration == pytest.approx(300, abs=3)
    assert found[-1][1].throughput == pytest.approx(throughput, abs=0.1)


@pytest.mark.parametrize("work_seconds", [0.001, 0.006, 0.02])
@pytest.mark.parametrize(("lasts_seconds", "is_told"), [(0.09, False), (1.0, True)])
def test_what_passes_by_for_a_tenth_of_a_second_accuses_nobody(
    work_seconds: float, lasts_seconds: float, is_told: bool
) -> None:
    scan, begin, length = scan_of(2), 300, round(lasts_seconds / work_seconds)
    log_ratios = 0.02 * np.random.default_rng(3).standard_normal((begin + length, 3, 2))
    log_ratios[begin:, 0, 1] += np.log(1.5)
    told = [frame for frame, each in enumerate(log_ratios) if scan.observe(frame, each, work_seconds)]
    assert bool(told) == is_told
    assert all(0.12 <= (frame - begin + 1) * work_seconds < 0.3 for frame in told[:1])


def test_a_frame_counts_by_what_it_took_its_device() -> None:
    scan = scan_of(2)
    log_ratios = 0.02 * np.random.default_rng(3).standard_normal((320, 3, 2))
    log_ratios[300:, 1, 1] += np.log(10)
    told = [frame for frame, each in enumerate(log_ratios) if scan.observe(frame, each, 0.006)]
    assert 303 <= told[0] <= 305


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_twice_the_work_is_told_soon_where_noise_wanders(seed: int) -> None:
    scan, random = scan_of(8), np.random.default_rng(seed)
    wandering = np.zeros((430, 8))
    for frame in range(1, len(wandering)):
        wandering[frame] = 0.9 * wandering[frame - 1] + 0.05 * random.standard_normal(8)
    log_ratios = 0.02 * random.standard_normal((len(wandering), 3, 8))
    log_ratios[:, 0] += wandering
    log_ratios[400:, 0, 1] += np.log(2)
    told = [(frame, change) for frame, each in enumerate(log_ratios) for change in scan.observe(frame, each, 0.0065)]
    assert {change.device for _, change in told} == {1}
    assert 410 <= told[0][0] < 420


@pytest.mark.parametrize("num_devices", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", [1, 2])
def test_healthy_devices_are_let_be(num_devices: int, seed: int) -> None:
    assert observe(scan_of(num_devices), Job(num_devices, num_frames=1000, seed=seed).readings()) == []


def test_one_that_is_15_per_cent_slower_by_nature_is_let_be_and_one_of_60_told() -> None:
    assert observe(scan_of(4), Job(4).readings(work=1.15)) == []
    ((frame, change),) = observe(scan_of(4), Job(4).readings(work=1.6))
    assert (change.device, frame < 20) == (1, True)
    assert change.throughput == pytest.approx(1 / 1.6, abs=0.05)


def test_what_slows_both_of_two_accuses_neither_and_a_faster_peer_neither() -> None:
    seconds = Job(2).readings()[300:]
    assert observe(pickle.loads(healthy_so_far(2)), 1.5 * seconds, 300) == []
    seconds[:, 0, 0] /= 1.5
    assert observe(pickle.loads(healthy_so_far(2)), seconds, 300) == []


@pytest.mark.parametrize(
    ("hosts", "other", "told"),
    [
        ((0, 1, 1, 1, 0, 0), 1.4, set()),
        ((0, 0, 0, 0, 0, 0), 1.4, set()),
        ((0, 1, 1, 1, 0, 0), 1.0, {1}),
        ((0, 1, 2, 2, 1, 0), 1.4, {1, 2}),
        # All of a host, and nobody else: the job is slow because of these.
        ((0, 1, 1, 2, 2, 0), 1.4, {1, 2}),
    ],
)
def test_some_of_one_host_that_slow_down_together_are_its_cores_that_are_slow(
    hosts: tuple[int, ...], other: float, told: set[int]
) -> None:
    scan, seconds = pickle.loads(healthy_so_far(6)), Job(6).readings(work=1.4, begin=300)
    seconds[300:, 0, 2] *= other
    scan.run_on(np.array(hosts))
    assert {change.device for _, change in observe(scan, seconds[300:], 300)} == told


def test_what_others_on_many_hosts_gain_together_does_not_hide_who_lost() -> None:
    scan, devices = scan_of(12), np.arange(12)
    log_ratios = 0.004 * np.random.default_rng(5).standard_normal((260, 3, 12))
    log_ratios[100:] -= 0.02
    log_ratios[100:, 0, 1] += 0.02 + np.log(1.05)
    told = []
    for frame, each in enumerate(log_ratios):
        scan.run_on(devices // 3)
        told += [(frame, change) for change in scan.observe(frame, each, WORK_SECONDS)]
    assert {change.device for _, change in told} == {1}
    assert told[0][0] < 120
    assert told[-1][1].throughput == pytest.approx(1 / 1.05 * np.exp(-0.02), abs=0.01)


def test_a_recovery_is_told_within_forty_frames() -> None:
    seconds = Job(2).readings(work=1.5, begin=300)
    seconds[400:] = Job(2, seed=9).readings()[400:]
    found = observe(pickle.loads(healthy_so_far(2)), seconds[300:], 300)
    assert [change.recovered for _, change in found] == [False, True]
    assert found[1][0] < 440


@pytest.mark.parametrize("each", [6, 8, 12])
def test_who_is_more_and_less_slow_in_turn_gets_one_level_in_the_end(each: int) -> None:
    seconds = Job(4).readings(work=1.3, begin=300)
    is_worse = (np.arange(300) // each) % 2 == 1
    seconds[300:, 0, 1] *= np.where(is_worse, 2.0, 1.0)
    found = observe(pickle.loads(healthy_so_far(4)), seconds[300:], 300)
    assert len(found) <= 8
    assert found[-1][0] < 450
    assert not any(change.recovered for _, change in found)
    assert found[-1][1].throughput == pytest.approx(1 / (1.3 * 1.5), abs=0.1)


def test_a_few_frames_decide_nothing_however_slow() -> None:
    seconds = Job(2).readings()[300:]
    seconds[:3, 1, 1] += 1.0
    assert observe(pickle.loads(healthy_so_far(2)), seconds, 300) == []


def test_who_stops_reporting_is_not_accused() -> None:
    seconds = Job(3).readings()[300:]
    seconds[:, :, 1] = np.nan
    assert observe(pickle.loads(healthy_so_far(3)), seconds, 300) == []


@cache
def never_stored(seed: int) -> list[tuple[int, SpeedChange]]:
    return observe(scan_of(3), Job(3, num_frames=220, seed=seed).readings(work=1.4, begin=120))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 219), max_size=3), st.integers(0, 3))
def test_a_scan_that_is_stored_anywhere_goes_on_as_if_nothing_had_happened(cuts: list[int], seed: int) -> None:
    seconds, whole = Job(3, num_frames=220, seed=seed).readings(work=1.4, begin=120), never_stored(seed)
    scan, pieces, begin = scan_of(3), [], 0
    for cut in [*sorted(cuts), len(seconds)]:
        pieces += observe(scan, seconds[begin:cut], begin)
        scan, begin = pickle.loads(pickle.dumps(scan)), cut
    assert pieces == whole
    assert whole


@pytest.mark.parametrize("stay_fast", [1, 2, 3])
def test_who_returns_from_a_fast_spell_of_all_is_as_usual(stay_fast: int) -> None:
    scan = pickle.loads(healthy_so_far(4))
    seconds = Job(4).readings()[300:420]
    seconds[:24, 0] /= 1.15
    seconds[24:, 0, :stay_fast] /= 1.15
    assert observe(scan, seconds, 300) == []
