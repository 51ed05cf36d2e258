import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.cost.cut_iteration import cut_by
from evenkeel.simulator.fleet.faults.faults import Fault
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of

QUOTA, STAGES, REPLICAS = 8, 4, 4


def operation(replicas=REPLICAS, quota=QUOTA):
    home = uniform_layout(num_blocks=8, tensor=1, pipeline=STAGES, data=replicas, num_micro_batches=replicas * quota)
    return operation_of(home)


def cut(fraction, devices=(0,), earlier=None, running=None, at_seconds=100.0):
    return cut_by(earlier, running or operation(), devices, at_seconds, fraction, 11.0)


def test_a_death_at_the_start_of_an_iteration_costs_nothing():
    running = operation()
    assert cut(0.0, running=running).kept_seconds(100.0, running, 11.0) == pytest.approx(0.0)


def test_the_dead_replicas_micro_batches_and_those_in_flight_run_again():
    # Six of eleven steps are over: 3 of 8 micro-batches are through, 5 are not; the dead replica lost all 8.
    assert cut(6.0 / 11.0).remaining(100.0) == pytest.approx(8 + 3 * 5)


def test_survivors_finish_their_part_while_nobody_has_told_of_the_death():
    running = operation()
    late = cut(0.5, running=running)
    assert late.remaining(200.0) == pytest.approx(QUOTA)
    # Two micro-batches each on four replicas: two steps and the filling, where half an iteration was still to come.
    assert late.kept_seconds(200.0, running, 11.0) == pytest.approx(11.0 * ((2 + STAGES - 1) / 11.0 - 0.5))


@given(
    fraction=st.floats(0.0, 0.999),
    waited=st.floats(0.0, 50.0),
    left=st.integers(1, REPLICAS),
    devices=st.sets(st.integers(0, REPLICAS * STAGES - 1), min_size=1),
)
def test_keeping_sums_never_costs_more_than_starting_again(fraction, waited, left, devices):
    total = REPLICAS * QUOTA
    following = Operation(
        replicas=operation(left).replicas,
        quotas=tuple(total // left + (1 if d < total % left else 0) for d in range(left)),
    )
    found = cut(fraction, tuple(devices))
    assert found.kept_seconds(100.0 + waited, following, 11.0) <= found.fraction * 11.0 + 1e-9


def test_a_second_death_before_the_answer_takes_its_replica_too_and_nothing_else():
    running = operation()
    first = cut(0.5, running=running)
    second = cut(0.0, devices=(STAGES,), earlier=first, running=running, at_seconds=103.0)
    assert (second.fraction, second.at_seconds) == (first.fraction, first.at_seconds)
    assert second.remaining(200.0) == pytest.approx(2 * QUOTA)


def test_a_death_costs_evenkeel_less_pause_the_longer_survivors_could_work_on(medium):
    death = [Fault(at_seconds=1805.0, devices=(0,))]
    pauses = [medium.run(STRATEGIES["Evenkeel"], death, hours=1.0, stop_seconds=s).paused_seconds for s in (0.0, 30.0)]
    assert pauses[1] < pauses[0]
