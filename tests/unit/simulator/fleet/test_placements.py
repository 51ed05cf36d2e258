import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.baselines import Check
from benchmarks.planning.papers.placements import PLACEMENTS, deaths, victims
from evenkeel.layouts.layout import uniform_layout
from evenkeel.simulator.fleet.faults.topology import Topology

HOME = uniform_layout(num_blocks=8, tensor=4, pipeline=4, data=2, num_micro_batches=8)
TOPOLOGY = Topology(num_devices=32, devices_per_node=8)


@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(0, 50))
def test_everybody_is_hit_once_and_the_same_seed_hits_the_same(placement, seed):
    order = victims(placement, HOME, TOPOLOGY, seed)
    assert sorted(order) == list(range(32))
    assert order == victims(placement, HOME, TOPOLOGY, seed)


@pytest.mark.parametrize(("placement", "size"), [("group", 4), ("node", 8), ("replica", 16)])
@given(seed=st.integers(0, 20))
def test_one_unit_is_gone_before_the_next_is_touched(placement, size, seed):
    order = victims(placement, HOME, TOPOLOGY, seed)
    units = [rank // size for rank in order]
    assert all(len(set(units[at : at + size])) == 1 for at in range(0, 32, size))


def test_an_even_order_takes_one_of_each_group_in_turn():
    order = victims("even", HOME, TOPOLOGY, 3)
    assert all(len({rank // 4 for rank in order[at : at + 8]}) == 8 for at in range(0, 32, 8))


def test_an_unknown_placement_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"no placement 'odd': give one of even, random"):
        victims("odd", HOME, TOPOLOGY, 0)


def test_deaths_come_at_the_interval_and_not_at_the_end():
    found = deaths("group", HOME, TOPOLOGY, every_seconds=10.0, duration_seconds=40.0, seed=0, throughputs=(0.0, 0.5))
    assert [fault.at_seconds for fault in found] == [10.0, 20.0, 30.0]
    assert [fault.throughput for fault in found] == [0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("published", "difference", "explained"), [(50.0, 0.0, True), (64.0, -4.0, True), (30.0, 10.0, False)]
)
def test_a_difference_is_to_the_nearer_end_and_wants_a_cause_beyond_five_points(published, difference, explained):
    check = Check(system="S", table="T", protocol="P", published=published, ours=(40.0, 60.0))
    assert check.difference == difference
    assert check.is_explained is explained
