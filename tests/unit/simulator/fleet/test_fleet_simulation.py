from dataclasses import replace
from itertools import pairwise

import pytest

from evenkeel.planning.solution import TIE
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.faults import Fault, FaultProcess, drawn_faults

HOUR = 3600.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_faults_every_system_runs_at_full_speed_and_changes_nothing(small, name):
    result = small.run(STRATEGIES[name], [])
    assert result.throughput == pytest.approx(1.0)
    assert result.num_answers == 0
    assert result.paused_seconds == result.stopped_seconds == 0.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_run_twice_is_the_same_run(small, name):
    processes = [
        FaultProcess(every_seconds=HOUR, mean_repair_seconds=2 * HOUR),
        FaultProcess(every_seconds=HOUR, throughputs=(0.4,), mean_repair_seconds=HOUR),
    ]
    faults = drawn_faults(processes, small.topology, duration_seconds=4 * HOUR, seed=5)
    first, again = (
        replace(small.run(STRATEGIES[name], faults, estimate_error=0.05), plan_seconds=()) for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "ReCoVer"])
def test_when_everybody_is_repaired_every_system_that_lets_ranks_back_in_is_at_full_speed_again(small, name):
    faults = [
        Fault(at_seconds=HOUR, devices=(1,), duration_seconds=HOUR),
        Fault(at_seconds=1.5 * HOUR, devices=(9,), throughput=0.5, duration_seconds=HOUR),
    ]
    result = small.run(STRATEGIES[name], faults)
    assert result.segments[-1].rate == pytest.approx(1.0)


def test_a_dead_device_stops_the_job_until_its_verdict_and_the_transition(small):
    result = small.run(STRATEGIES["Evenkeel"], [Fault(at_seconds=HOUR, devices=(0,))], stop_seconds=30.0)
    assert result.stopped_seconds == pytest.approx(30.0)
    assert 2.0 < result.paused_seconds < 30.0
    assert result.segments[-1].rate > 0.85


def test_a_slowdown_that_is_never_noticed_is_suffered_to_the_end(small):
    fault = Fault(at_seconds=0.0, devices=(0,), throughput=0.5)
    seen = small.run(STRATEGIES["Evenkeel"], [fault])
    missed = small.run(STRATEGIES["Evenkeel"], [fault], slow_miss_probability=1.0)
    nothing = small.run(STRATEGIES["no mitigation"], [fault])
    assert missed.throughput == pytest.approx(nothing.throughput)
    assert seen.throughput > 1.3 * missed.throughput


def test_a_plan_from_wrong_estimates_is_judged_by_the_truth(medium):
    fault = Fault(at_seconds=0.0, devices=(0,), throughput=0.6)
    exact = medium.run(STRATEGIES["Evenkeel"], [fault]).throughput
    guessed = [
        medium.run(STRATEGIES["Evenkeel"], [fault], estimate_error=0.4, seed=seed).throughput for seed in range(12)
    ]
    # Of plans within a tie the one that moves least is made: a wrong estimate may lead to a faster one of these.
    assert max(guessed) <= exact * (1.0 + TIE)
    assert sum(guessed) / len(guessed) < 0.97 * exact


def test_segments_cover_the_run_without_gap(small):
    faults = [Fault(at_seconds=600.0 * i, devices=(i,), duration_seconds=900.0) for i in range(1, 8)]
    segments = small.run(STRATEGIES["Evenkeel"], faults).segments
    assert segments[0].from_seconds == 0.0
    assert segments[-1].until_seconds == 4 * HOUR
    assert all(a.until_seconds == b.from_seconds for a, b in pairwise(segments))


def test_throughput_stays_below_the_bound_plus_what_a_shorter_pipeline_saves(medium):
    process = FaultProcess(every_seconds=0.5 * HOUR)
    faults = drawn_faults([process], medium.topology, duration_seconds=8 * HOUR, seed=1)
    for name in STRATEGIES:
        result = medium.run(STRATEGIES[name], faults, hours=8.0)
        assert result.throughput < 1.05 * result.bound
