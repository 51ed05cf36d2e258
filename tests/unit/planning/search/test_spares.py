import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.levers.balance.cuts import best_stage
from evenkeel.planning.levers.balance.tuning import MICRO_BATCH_QUOTA, Tuner
from evenkeel.planning.levers.standby import Standby
from evenkeel.planning.repair import repaired
from evenkeel.planning.search.solver import solve
from evenkeel.planning.search.spares import steps
from tests.unit.planning.planning_cases import situation_of

HOME = uniform_layout(num_blocks=10, tensor=2, pipeline=2, data=2, num_micro_batches=7)


def with_spares(*ranks, speeds=None):
    """The full shape in force, and these ranks without a place in it."""
    situation = situation_of(HOME, dead=(0,), speeds=speeds)
    return replace(situation, throughputs={**dict.fromkeys(ranks, 1.0), **situation.throughputs})


def parts(situation):
    return [set(situation.throughputs) - set(HOME.ranks) - left_out for left_out in steps(situation, thoroughly=True)]


def test_a_job_without_spare_ranks_is_planned_once():
    assert steps(with_spares(), thoroughly=True) == (frozenset(),)


def test_spares_of_one_speed_are_counted_and_others_are_told_apart():
    assert parts(with_spares(8, 9, 10)) == [set(), {8}, {8, 9}, {8, 9, 10}]
    assert parts(with_spares(8, 9, speeds={9: 0.5})) == [set(), {9}, {8}, {8, 9}]


def test_where_steps_would_be_too_many_one_less_of_each_kind_is_tried_or_only_none():
    spares = range(8, 16)
    situation = with_spares(*spares, speeds={rank: 0.1 * (rank - 6) for rank in spares})
    assert parts(situation) == [set(), *({*spares} - {rank} for rank in spares), set(spares)]
    assert [len(left_out) for left_out in steps(situation, thoroughly=False)] == [8, 0]


@given(st.dictionaries(st.integers(1, 8), st.floats(0.2, 1.0), max_size=5))
@example({3: 0.5, 5: 0.4})
def test_a_standby_goes_where_it_helps_most_with_the_best_quotas(slow):
    situation = with_spares(8, speeds=slow)
    base = repaired(HOME, situation.throughputs)

    def seconds(layout):
        return situation.seconds(Tuner(situation).tuned(layout, (MICRO_BATCH_QUOTA,)))

    everywhere = []
    for d, replica in enumerate(base.replicas):
        for s, stage in enumerate(replica.stages):
            wider = best_stage(situation, replace(stage, ranks=(*stage.ranks, 8), shares=(*stage.shares, 1)))
            if 8 not in wider.ranks:
                continue
            stages = (*replica.stages[:s], wider, *replica.stages[s + 1 :])
            replicas = (*base.replicas[:d], replace(replica, stages=stages), *base.replicas[d + 1 :])
            everywhere.append(seconds(replace(base, replicas=replicas, standbys=())))
    placed = [seconds(layout) for layout in Standby().propose(situation, base)][:1]
    best = min(everywhere, default=math.inf)
    assert placed == [pytest.approx(best, rel=1e-9)] or (not placed and best >= seconds(base) * (1.0 - 2e-9))


@pytest.mark.parametrize("speed", [0.7, 0.84, 0.9])
def test_a_standby_takes_the_place_of_a_slow_shard_where_both_together_are_no_faster(speed):
    home = uniform_layout(num_blocks=6, tensor=3, pipeline=2, data=3, num_micro_batches=15)
    situation = situation_of(home, speeds={4: speed, 18: 1.2})
    layout = solve(situation).layout
    assert 18 in layout.ranks
    assert max(len(stage.ranks) for replica in layout.replicas for stage in replica.stages) == 3
    assert layout.standbys == (4,)
