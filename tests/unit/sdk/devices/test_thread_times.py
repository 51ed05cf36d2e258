"""How the kernel divides the training thread's time: on simulated clocks, and on the kernel's."""

import contextlib
import os
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.devices.thread_times import KernelThread, ThreadTimes

LEAST_SECONDS = 20e-6
"""Time off a core that is not worth a read: two borders of a span may each leave as much to the next reading."""

CARRIED_SECONDS = 5e-6
"""A reading as young as that is carried on."""


class Machine:
    """One thread and its clocks."""

    def __init__(self) -> None:
        self.cpu, self.queued, self.blocked = 3.0, 5.0, 0.0
        self.is_ours = True
        self.num_reads = 0
        self.num_clock_reads = 0

    def now(self) -> float:
        return 100.0 + self.cpu + self.queued + self.blocked

    def is_current(self) -> bool:
        return self.is_ours

    def cpu_seconds(self) -> float:
        self.num_clock_reads += 1
        return self.cpu

    def queued_seconds(self) -> float:
        self.num_reads += 1
        return self.queued


SECONDS = st.floats(0.0, 1e-5) | st.floats(0.0, 0.1)
KINDS = st.sampled_from([ComputeKind.FORWARD, ComputeKind.BACKWARD, ComputeKind.OPTIMIZER, ComputeKind.DATA, None])


@given(stretches=st.lists(st.tuples(KINDS, SECONDS, SECONDS, SECONDS), max_size=12))
def test_time_on_a_core_and_waiting_for_one_are_those_of_forward_and_backward_alone(
    stretches: list[tuple[ComputeKind | None, float, float, float]],
) -> None:
    machine = Machine()
    device = CpuDevice(machine.now, lambda: machine)
    expected_cpu = expected_queued = 0.0
    for kind, cpu, queued, blocked in [(ComputeKind.FORWARD, 0.0, 0.0, 0.0), *stretches]:
        if kind is not None:
            device.begin(kind)
        machine.cpu += cpu
        machine.queued += queued
        machine.blocked += blocked
        if kind is not None:
            device.end(0.0, kind)
        if kind in (ComputeKind.FORWARD, ComputeKind.BACKWARD):
            expected_cpu += cpu
            expected_queued += queued
    _, thread, by_device = device.take()
    assert thread is not None
    assert not by_device
    cpu_seconds, queued_seconds = thread
    assert cpu_seconds == pytest.approx(expected_cpu, abs=2 * CARRIED_SECONDS * (len(stretches) + 1))
    assert queued_seconds == pytest.approx(expected_queued, abs=2 * LEAST_SECONDS * (len(stretches) + 1))
    assert device.take().thread == (0.0, 0.0)


def test_a_thread_that_never_leaves_its_core_costs_no_read_of_a_file() -> None:
    machine = Machine()
    times = ThreadTimes(machine.now, lambda: machine)
    times.begin()
    num_reads = machine.num_reads
    for _ in range(100):
        machine.cpu += 0.01
        times.end()
        times.begin()
    assert machine.num_reads == num_reads
    assert times.take() == (pytest.approx(1.0), 0.0)


@pytest.mark.parametrize(("apart_seconds", "num_clock_reads"), [(1e-6, 101), (1e-5, 200)])
def test_spans_that_meet_share_one_reading(apart_seconds: float, num_clock_reads: int) -> None:
    machine = Machine()
    times = ThreadTimes(machine.now, lambda: machine)
    for _ in range(100):
        times.begin()
        machine.cpu += 0.01
        times.end()
        machine.cpu += apart_seconds
    assert machine.num_clock_reads == num_clock_reads
    assert times.take() == (pytest.approx(1.0), 0.0)


def test_readings_that_are_carried_on_do_not_add_up() -> None:
    machine = Machine()
    times = ThreadTimes(machine.now, lambda: machine)
    for _ in range(10_000):
        times.begin()
        machine.blocked += 2e-6
        times.end()
    taken = times.take()
    assert taken is not None
    assert taken[0] <= 2 * CARRIED_SECONDS


def test_what_is_not_told_is_absent_and_never_zero() -> None:
    device = CpuDevice(open_thread=lambda: None)
    device.begin(ComputeKind.FORWARD)
    device.end(0.0, ComputeKind.FORWARD)
    assert device.take().thread is None


def test_an_iteration_that_changed_its_thread_is_not_told_and_the_next_one_is() -> None:
    machine, other = Machine(), Machine()
    threads = iter([machine, other])
    times = ThreadTimes(machine.now, lambda: next(threads))
    times.begin()
    machine.is_ours = False
    times.end()
    assert times.take() is None
    times.begin()
    other.cpu += 1.0
    machine.cpu += 1.0  # the clock on the wall is this one's
    times.end()
    assert times.take() == (1.0, 0.0)


def busy(until_cpu_seconds: float) -> None:
    while time.thread_time() < until_cpu_seconds:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells waiting for a core")
def test_the_kernel_tells_work_from_sleep_whichever_thread_asks() -> None:
    thread = KernelThread.open()
    assert thread is not None
    assert thread.is_current()
    began = thread.cpu_seconds()
    busy(time.thread_time() + 0.02)
    worked = thread.cpu_seconds() - began
    assert worked >= 0.02
    at, cpu, queued = time.perf_counter(), thread.cpu_seconds(), thread.queued_seconds()
    time.sleep(0.05)
    cpu, queued = thread.cpu_seconds() - cpu, thread.queued_seconds() - queued
    assert time.perf_counter() - at - cpu - queued >= 0.05

    def ask() -> None:
        busy(time.thread_time() + 0.02)
        answers.append((thread.is_current(), thread.cpu_seconds()))

    answers: list[tuple[bool, float]] = []
    asking = threading.Thread(target=ask)
    before = thread.cpu_seconds()
    asking.start()
    asking.join()
    assert answers[0][0] is False
    assert answers[0][1] - before < 0.02


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells waiting for a core")
@pytest.mark.parametrize("is_in_span", [False, True])
def test_a_forked_child_reads_no_clock_of_its_parent(is_in_span: bool) -> None:
    times = ThreadTimes()
    times.begin()
    if not is_in_span:
        times.end()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            times.end()
            times.begin()
            times.end()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    times.end()
    assert times.take() is not None
