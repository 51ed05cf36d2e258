import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.simulator.fleet.operation.network import Discipline, Network, migrated_routes, period_seconds
from tests.unit.planning.planning_cases import one_f_one_b_makespan

SECONDS = st.integers(1, 9).map(float)


def row(stages):
    return tuple(seconds for stage in stages for seconds in stage)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5), st.integers(1, 10))
@settings(max_examples=80, deadline=None)
def test_a_replica_alone_is_never_slower_than_its_busiest_stage_and_close_to_1f1b(stages, quota):
    taken = period_seconds((row(stages),), (quota,), (), Discipline(), 0.0)
    busiest = quota * max(forward + backward for forward, backward in stages)
    one_pass = sum(forward + backward for forward, backward in stages)
    assert taken >= max(busiest, one_pass) - 1e-9
    assert taken <= 1.1 * one_f_one_b_makespan(stages, quota, 0.0) + 1e-9


@pytest.mark.parametrize(("num_stages", "quota"), [(1, 4), (2, 4), (4, 8), (8, 16)])
def test_equal_stages_take_exactly_the_closed_form_of_1f1b(num_stages, quota):
    taken = period_seconds((row([(1.0, 2.0)] * num_stages),), (quota,), (), Discipline(), 0.0)
    assert taken == pytest.approx((quota + num_stages - 1) * 3.0)


def test_staggered_steps_and_split_backwards_hide_the_bubble():
    seconds = (row([(1.0, 2.0)] * 4),)
    plain = period_seconds(seconds, (8,), (), Discipline(), 0.0)
    decoupled = Discipline(decoupled=True)
    hidden = period_seconds(seconds, (8,), (), decoupled, 0.0)
    assert 24.0 - 1e-9 <= hidden < 0.85 * plain


@given(
    st.lists(st.lists(SECONDS, min_size=3, max_size=3), min_size=2, max_size=3), st.integers(1, 5), st.integers(0, 4)
)
@settings(max_examples=60, deadline=None)
def test_migration_lets_every_stage_of_every_micro_batch_be_executed_by_somebody(speeds, quota, above):
    seconds = tuple(row([(speed, 2 * speed) for speed in replica]) for replica in speeds)
    routes = migrated_routes(seconds, (quota,) * len(seconds), above, 0.0)
    end = period_seconds(seconds, (quota,) * len(seconds), routes, Discipline(), 0.0)
    assert [len(each) for each in routes] == [quota] * len(seconds)
    assert {executor for each in routes for batch in each for executor in batch} <= set(range(len(seconds)))
    assert end >= max(quota * 3 * min(replica[s] for replica in speeds) for s in range(3)) / len(seconds)


def test_micro_batches_of_a_dead_stage_go_to_the_other_replica():
    seconds = (row([(1.0, 2.0), (1.0, 2.0)]), row([(1.0, 2.0), (0.0, 0.0)]))
    routes = migrated_routes(seconds, (3, 3), 0, 0.0)
    assert [batch[1] for batch in routes[1]] == [0, 0, 0]


def test_work_that_nobody_executes_is_an_error_that_says_so():
    seconds = (row([(1.0, 2.0), (0.0, 0.0)]),)
    with pytest.raises(ValueError, match="nobody executes"):
        Network(seconds, (2,), (), Discipline(), 0.0).run()
