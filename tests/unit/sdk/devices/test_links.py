"""Emulated links on a fake clock, the table of their factors, stamps, and the clocks they are on."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.devices.links import EmulatedLinks, Links, LinkTable
from evenkeel.trainer_sdk.devices.wall_clock import WallClock
from evenkeel.trainer_sdk.groups.channel import Channel
from evenkeel.trainer_sdk.launcher.description.run_state import RunState
from evenkeel.trainer_sdk.launcher.inject import hang, slow, slow_endpoint, slow_input, slow_link


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_transfer_lasts_its_latency_and_its_bytes() -> None:
    clock = FakeClock()
    links = EmulatedLinks(bytes_per_second=1e6, latency_seconds=0.001, clock=clock, sleep=clock.sleep)
    checks = []
    links.hold((0, 1), 100_000, lambda: checks.append(clock.now))
    assert clock.now == pytest.approx(0.101)
    assert len(checks) > 3, "an interrupt is looked for while it lasts"


@given(st.integers(3, 9), st.integers(0, 8), st.floats(1.0, 50.0))
def test_a_ring_is_as_slow_as_its_slowest_link_and_a_link_outside_it_does_not_matter(size, place, factor):
    ring = tuple(range(size))
    slow = {(place % size, (place + 1) % size), ((place + 1) % size, place % size)}
    links = EmulatedLinks(bytes_per_second=1e6, factor=lambda a, b: factor if (a, b) in slow else 1.0)
    healthy = EmulatedLinks(bytes_per_second=1e6)
    assert links.seconds(ring, 1000) == pytest.approx(factor * healthy.seconds(ring, 1000))
    assert healthy.seconds(ring, 1000) == pytest.approx(2 * (size - 1) / size * 1e-3)
    across = {(0, 2), (2, 0)} if size > 3 else set()
    aside = EmulatedLinks(bytes_per_second=1e6, factor=lambda a, b: factor if (a, b) in across else 1.0)
    assert aside.seconds(ring, 1000) == healthy.seconds(ring, 1000)


@pytest.mark.parametrize("options", [{"bytes_per_second": 0.0}, {"bytes_per_second": 1.0, "latency_seconds": -1.0}])
def test_a_link_that_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        EmulatedLinks(**options)


def test_a_link_table_is_shared_through_its_file_and_knows_no_direction(tmp_path: Path) -> None:
    writer = LinkTable.create(tmp_path / "links", 4)
    reader = LinkTable(tmp_path / "links")
    assert reader.factor(1, 3) == 1.0
    writer.set_factor(3, 1, 2.5)
    assert (reader.factor(1, 3), reader.factor(3, 1), reader.factor(1, 2)) == (2.5, 2.5, 1.0)
    writer.set_factor(1, 3, 1.0)
    assert reader.factor(3, 1) == 1.0
    writer.close()
    reader.close()


@pytest.mark.parametrize(("pair", "what"), [((0, 4), "0 to 3"), ((2, 2), "no link to itself")])
def test_what_no_link_can_be_is_refused(tmp_path: Path, pair: tuple[int, int], what: str) -> None:
    table = LinkTable.create(tmp_path / "links", 4)
    with pytest.raises(ValueError, match=what):
        table.set_factor(*pair, 2.0)
    table.close()


def test_a_file_that_is_no_link_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "links").write_bytes(b"\0" * 24)
    with pytest.raises(ValueError, match="no link table"):
        LinkTable(tmp_path / "links")


def test_injection_reaches_the_table_of_a_running_job_and_says_when_there_is_none(tmp_path: Path) -> None:
    table = LinkTable.create(tmp_path / "links", 3)
    RunState(job_id="job", supervisor_pid=1, speed_table="speeds", link_table=str(tmp_path / "links"), ranks=[]).write(
        tmp_path
    )
    slow_link(tmp_path, 0, 2, 3.0)
    slow_endpoint(tmp_path, 1, 2.0)
    assert [table.factor(*pair) for pair in ((0, 2), (0, 1), (1, 2))] == [3.0, 2.0, 2.0]
    table.close()
    RunState(job_id="job", supervisor_pid=1, speed_table="speeds", ranks=[]).write(tmp_path)
    with pytest.raises(ValueError, match="link_bytes_per_second"):
        slow_link(tmp_path, 0, 2, 3.0)


def test_what_no_device_and_no_link_can_be_is_not_injected(tmp_path: Path) -> None:
    for number in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="give 1 for healthy"):
            slow(tmp_path, 0, number)
        with pytest.raises(ValueError, match="give 0 for healthy"):
            slow_input(tmp_path, 0, number)
        with pytest.raises(ValueError, match="give 1 for healthy"):
            slow_link(tmp_path, 0, 1, number)


def test_real_devices_cannot_be_slowed_down_and_injection_says_so(tmp_path: Path) -> None:
    RunState(job_id="job", supervisor_pid=1, speed_table="", ranks=[]).write(tmp_path)
    for injected in (
        lambda: slow(tmp_path, 0, 0.5),
        lambda: slow_input(tmp_path, 0, 0.5),
        lambda: hang(tmp_path, 0),
    ):
        with pytest.raises(ValueError, match="the devices of job job are not emulated"):
            injected()


def test_a_channel_keeps_what_it_saw_until_it_is_taken() -> None:
    channel = Channel(kind=5, party=7, ranks=(0, 1, 2), sends=False, links=Links(), check=lambda: None)
    channel.ended(0.0, 10)
    channel.ended(0.0, 20)
    stamps = channel.take()
    assert (stamps.kind, stamps.party, stamps.num_members, stamps.num_bytes) == (5, 7, 3, [10, 20])
    assert stamps.took_seconds[0] <= stamps.took_seconds[1]
    assert channel.take().num_bytes == []


def test_a_process_that_loses_its_core_between_two_reads_keeps_its_clock() -> None:
    monotonic = iter([0.0, 1e-6, *(5.0 + 0.01 * step for step in range(6))])
    wall = iter([100.0, 105.004, 105.014, 105.024])
    clock = WallClock(wall=lambda: next(wall), monotonic=lambda: next(monotonic))
    assert clock.read() == (100.0, 0.0)
    unix, seconds = clock.read()
    assert unix - seconds == pytest.approx(100.0)
