import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.risks import judged_seconds
from evenkeel.planning.levers.rebalance.pair_stages import PairStages, dealt
from evenkeel.planning.search.solver import solve
from tests.unit.planning.planning_cases import situation_of

SPEEDS = st.integers(0, 8).map(float)


def job(micro_batches=8, tensor=4):
    return uniform_layout(num_blocks=34, tensor=tensor, pipeline=2, data=2, num_micro_batches=micro_batches)


def proposed(home, dead, heads=12, domains=8, speeds=None):
    situation = situation_of(home, dead=dead, heads=heads, speeds=speeds)
    known = {rank: rank // domains for rank in home.ranks}
    return list(PairStages().propose(replace_domains(situation, known), home))


def replace_domains(situation, domains):
    return type(situation)(
        layout=situation.layout,
        home=situation.home,
        throughputs=situation.throughputs,
        cost=situation.cost,
        holders=situation.holders,
        domains=domains,
    )


@given(
    st.integers(1, 4).flatmap(
        lambda places: st.lists(st.lists(SPEEDS, min_size=places, max_size=places), min_size=1, max_size=6)
    )
)
@settings(max_examples=200, deadline=None)
def test_dealing_keeps_every_stage_at_its_place_and_never_makes_the_slowest_replica_slower(cells):
    found = dealt(cells)
    for s in range(len(cells[0])):
        assert sorted(row[s] for row in found) == list(range(len(cells)))
    after = [sum(cells[source][s] for s, source in enumerate(row)) for row in found]
    assert min(after) >= min(map(sum, cells)) - 1e-9


def test_replicas_that_are_alike_keep_their_stages():
    assert dealt([[4.0, 3.0], [3.0, 4.0]]) == [[0, 0], [1, 1]]


def test_two_broken_stages_of_one_replica_are_shared_out():
    home = job()
    layouts = proposed(home, dead=(0, 4))
    assert [len(replica.ranks) for replica in layouts[0].replicas] == [7, 7]


def test_three_and_three_of_one_domain_become_four_and_two_where_heads_divide_by_them():
    home = job()
    layouts = proposed(home, dead=(0, 4), heads=28)
    widths = [len(stage.ranks) for replica in layouts[0].replicas for stage in replica.stages]
    assert sorted(widths) == [2, 4, 4, 4]


def test_no_stage_comes_to_span_two_domains():
    home = job()
    for layout in proposed(home, dead=(0, 4, 9, 13), heads=28):
        for replica in layout.replicas:
            for stage in replica.stages:
                assert len({rank // 8 for rank in stage.ranks}) == 1


def test_where_quotas_are_fine_or_one_stage_is_broken_nothing_is_proposed():
    assert not proposed(job(micro_batches=64), dead=(0, 4))
    assert not proposed(job(), dead=(0,))


@pytest.mark.parametrize("dead", [(7, 9, 13), (3, 7, 9, 13), (0, 1, 4, 12)])
def test_a_plan_uses_the_pairing_where_it_is_faster_than_all_else(dead):
    home = job()
    situation = replace_domains(situation_of(home, dead=dead, heads=28), {rank: rank // 8 for rank in home.ranks})
    fastest = min(judged_seconds(situation, layout) for layout in PairStages().propose(situation, home))
    assert judged_seconds(situation, solve(situation).layout) <= fastest * 1.005
