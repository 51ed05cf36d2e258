"""Emulated devices on a fake clock, and the table of speeds."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.emulated_device import EmulatedDevice
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.devices.speeds import SpeedTable


class Clock:
    """A clock that moves only when told, and a sleep that oversleeps by what it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.late_seconds = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.late_seconds


def device_on(clock: Clock, **options: object) -> EmulatedDevice:
    return EmulatedDevice(flops_per_second=1000.0, clock=clock, sleep=clock.sleep, **options)  # type: ignore[arg-type]


def segment(
    device: EmulatedDevice,
    clock: Clock,
    *,
    flops: float,
    real_seconds: float,
    kind: ComputeKind = ComputeKind.FORWARD,
) -> float:
    started = clock.now
    device.begin(kind)
    clock.now += real_seconds
    device.end(flops, kind)
    return clock.now - started


def test_a_segment_lasts_as_long_as_on_the_device_it_stands_for() -> None:
    clock = Clock()
    assert segment(device_on(clock), clock, flops=20, real_seconds=0.005) == pytest.approx(0.020)
    assert segment(device_on(clock, speed=lambda: 0.5), clock, flops=20, real_seconds=0.005) == pytest.approx(0.040)


def test_a_segment_never_lasts_less_than_the_real_compute() -> None:
    clock = Clock()
    assert segment(device_on(clock), clock, flops=20, real_seconds=0.3) == pytest.approx(0.3)


def test_a_change_of_speed_takes_effect_at_the_next_segment() -> None:
    clock, speed = Clock(), [1.0]
    device = device_on(clock, speed=lambda: speed[0])
    assert segment(device, clock, flops=10, real_seconds=0.0) == pytest.approx(0.010)
    speed[0] = 0.25
    assert segment(device, clock, flops=10, real_seconds=0.0) == pytest.approx(0.040)


@given(
    lateness=st.lists(st.floats(min_value=0, max_value=0.0039), min_size=5, max_size=60),
    flops=st.floats(min_value=10, max_value=100),
)
def test_late_sleeps_do_not_add_up(lateness: list[float], flops: float) -> None:
    clock = Clock()
    device = device_on(clock)
    total = 0.0
    for late_seconds in lateness:
        clock.late_seconds = late_seconds
        total += segment(device, clock, flops=flops, real_seconds=0.0)
    assert total == pytest.approx(len(lateness) * flops / 1000.0, abs=0.004)
    assert device.take().seconds == {ComputeKind.FORWARD: pytest.approx(total)}


@given(late_seconds=st.floats(min_value=0, max_value=0.0039), speed=st.floats(min_value=0.1, max_value=1))
def test_every_product_of_a_probe_takes_what_it_takes_by_itself(late_seconds: float, speed: float) -> None:
    clock = Clock()
    device = device_on(clock, speed=lambda: speed)
    clock.late_seconds = late_seconds
    segment(device, clock, flops=10, real_seconds=0.0)
    for _ in range(3):
        lasted = segment(device, clock, flops=2, real_seconds=0.0, kind=ComputeKind.PROBE)
        assert lasted == pytest.approx(0.002 / speed + late_seconds)
    assert segment(device, clock, flops=10, real_seconds=0.0) == pytest.approx(0.010 / speed)


@pytest.mark.parametrize(("flops_per_second", "repetitions"), [(2e9, 3), (1e8, 1)])
def test_a_probe_of_a_slow_device_is_not_repeated(flops_per_second: float, repetitions: int) -> None:
    seconds = MatrixProbe(EmulatedDevice(flops_per_second=flops_per_second))(100, 3)
    assert len(seconds) <= repetitions
    assert min(seconds) >= 2.0 * 100**3 / flops_per_second


def test_a_stall_stays_visible() -> None:
    clock = Clock()
    device = device_on(clock)
    segment(device, clock, flops=10, real_seconds=0.5)
    following = sum(segment(device, clock, flops=10, real_seconds=0.0) for _ in range(10))
    assert following == pytest.approx(0.100 - 0.004)


def test_a_segment_without_operations_is_measured_and_not_paced() -> None:
    clock = Clock()
    device = device_on(clock)
    device.begin(ComputeKind.DATA)
    clock.now += 0.003
    device.end(0, ComputeKind.DATA)
    assert device.take().seconds == {ComputeKind.DATA: pytest.approx(0.003)}
    assert device.take().seconds == {}
    assert segment(device, clock, flops=10, real_seconds=0.0) == pytest.approx(0.010)


def test_a_hanging_device_blocks_until_it_is_released() -> None:
    clock = Clock()
    answers = iter([True] * 40 + [False])
    device = device_on(clock, hangs=lambda: next(answers))
    assert segment(device, clock, flops=1, real_seconds=0.0) == pytest.approx(2.0)


def test_a_cpu_device_adds_up_segments_by_kind() -> None:
    clock = Clock()
    device = CpuDevice(clock)
    for kind, seconds in [(ComputeKind.FORWARD, 0.1), (ComputeKind.BACKWARD, 0.2), (ComputeKind.FORWARD, 0.3)]:
        clock.now += 5.0
        device.begin(kind)
        clock.now += seconds
        device.end(1e9, kind)
    assert device.take().seconds == {
        ComputeKind.FORWARD: pytest.approx(0.4),
        ComputeKind.BACKWARD: pytest.approx(0.2),
    }


def test_a_speed_table_is_shared_through_its_file(tmp_path: Path) -> None:
    path = tmp_path / "speeds"
    writer = SpeedTable.create(path, 4)
    reader = SpeedTable(path)
    assert [reader.speed(rank) for rank in range(4)] == [1.0] * 4
    writer.set_speed(3, 0.5)
    writer.set_hangs(1, True)
    assert [reader.speed(rank) for rank in range(4)] == [1.0, 1.0, 1.0, 0.5]
    assert [reader.hangs(rank) for rank in range(4)] == [False, True, False, False]
    writer.set_hangs(1, False)
    assert not reader.hangs(1)
    writer.set_input_seconds(2, 0.25)
    assert [reader.input_seconds(rank) for rank in range(4)] == [0.0, 0.0, 0.25, 0.0]
    assert [reader.speed(rank) for rank in range(4)] == [1.0, 1.0, 1.0, 0.5]
    reader.close()
    writer.close()


def test_a_rank_that_is_not_there_has_no_speed(tmp_path: Path) -> None:
    table = SpeedTable.create(tmp_path / "speeds", 1)
    with pytest.raises(ValueError, match="rank 1 is not in"):
        table.set_speed(1, 1.0)


def test_slow_input_delays_reads_of_input_and_nothing_else() -> None:
    clock, input_seconds = Clock(), [0.2]
    device = device_on(clock, input_seconds=lambda: input_seconds[0])
    assert segment(device, clock, flops=20, real_seconds=0.005) == pytest.approx(0.020)
    for real_seconds in (0.01, 0.3):
        device.begin(ComputeKind.DATA)
        clock.now += real_seconds
        device.end(0.0, ComputeKind.DATA)
    assert device.take().seconds == {ComputeKind.FORWARD: pytest.approx(0.020), ComputeKind.DATA: pytest.approx(0.5)}
    input_seconds[0] = 0.0
    device.begin(ComputeKind.DATA)
    device.end(0.0, ComputeKind.DATA)
    assert device.take().seconds == {ComputeKind.DATA: 0.0}


def test_a_file_that_is_no_speed_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "speeds"
    path.write_bytes(b"abc")
    with pytest.raises(ValueError, match="no speed table"):
        SpeedTable(path)
