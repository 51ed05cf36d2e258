import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.simulator.fleet.faults.faults import (
    Fault,
    FaultProcess,
    Spacing,
    Truth,
    checked_faults,
    drawn_faults,
)
from evenkeel.simulator.fleet.faults.topology import Scope, Topology

FLEET = Topology(num_devices=64, devices_per_node=8, nodes_per_rack=2)


def test_the_same_seed_draws_the_same_faults_and_another_one_others():
    process = FaultProcess(every_seconds=100.0, mean_repair_seconds=500.0)
    first = drawn_faults([process], FLEET, duration_seconds=5000.0, seed=3)
    assert first == drawn_faults([process], FLEET, duration_seconds=5000.0, seed=3)
    assert first != drawn_faults([process], FLEET, duration_seconds=5000.0, seed=4)


@given(st.integers(0, 1000), st.sampled_from(Scope))
@settings(max_examples=40, deadline=None)
def test_no_device_is_held_by_two_drawn_faults_at_once(seed, scope):
    process = FaultProcess(every_seconds=50.0, scope=scope, mean_repair_seconds=400.0)
    until = {}
    for fault in drawn_faults([process], FLEET, duration_seconds=3000.0, seed=seed):
        for device in fault.devices:
            assert until.get(device, 0.0) <= fault.at_seconds
            until[device] = fault.at_seconds + fault.duration_seconds


def test_exponential_spacing_has_the_mean_that_was_asked_for():
    process = FaultProcess(every_seconds=10.0, mean_repair_seconds=1.0)
    faults = drawn_faults([process], FLEET, duration_seconds=20_000.0, seed=1)
    assert len(faults) == pytest.approx(2000, rel=0.1)


def test_another_process_does_not_move_the_moments_of_the_first():
    one = FaultProcess(every_seconds=100.0, mean_repair_seconds=10.0)
    other = FaultProcess(every_seconds=70.0, throughputs=(0.5,), mean_repair_seconds=10.0)
    alone = drawn_faults([one], FLEET, duration_seconds=3000.0, seed=2)
    both = drawn_faults([one, other], FLEET, duration_seconds=3000.0, seed=2)
    assert len(both) > len(alone)
    assert len({fault.throughput for fault in both}) == 2


def test_a_node_fails_as_a_whole_and_a_rack_too():
    assert FLEET.members(Scope.NODE, 13) == tuple(range(8, 16))
    assert FLEET.members(Scope.RACK, 40) == tuple(range(32, 48))


def test_regular_deaths_come_when_they_were_said_to():
    process = FaultProcess(every_seconds=600.0, spacing=Spacing.REGULAR, max_count=3)
    faults = drawn_faults([process], FLEET, duration_seconds=7200.0, seed=0)
    assert [fault.at_seconds for fault in faults] == [600.0, 1200.0, 1800.0]
    assert all(fault.duration_seconds == math.inf for fault in faults)


def test_the_worst_fault_counts_and_the_other_stays_when_it_ends():
    truth = Truth(4)
    slow = Fault(at_seconds=0.0, devices=(1, 2), throughput=0.5)
    dead = Fault(at_seconds=1.0, devices=(2,))
    truth.begin(slow)
    truth.begin(dead)
    assert truth.live() == {0: 1.0, 1: 0.5, 3: 1.0}
    truth.end(dead)
    assert truth.throughput(2) == 0.5
    truth.end(slow)
    assert truth.live() == dict.fromkeys(range(4), 1.0)


def test_a_fault_outside_of_the_fleet_is_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"names devices \[64\]; the fleet has 0 to 63"):
        checked_faults([Fault(at_seconds=5.0, devices=(64,))], FLEET)
