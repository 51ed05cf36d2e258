from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning import situation as situations
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.price import Prices
from evenkeel.planning.levers.balance.cuts import best_stage
from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.levers.sequence_mix import sizes_for
from evenkeel.planning.levers.standby import Standby
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.repair import repaired, spread_quotas
from evenkeel.services.scheduler.dispatch.restore import uncovered_blocks
from tests.unit.planning.planning_cases import situation_of

speeds = st.lists(st.floats(0.1, 1.0), min_size=1, max_size=3)


@given(st.integers(1, 8), speeds, st.none() | st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_widths_are_the_best_of_all_that_exist(num_granules, speed, room):
    def slowest(widths):
        return max(w / p for w, p in zip(widths, speed, strict=True))

    most = None if room is None else -(-num_granules // len(speed)) + room
    found = best_widths(num_granules, tuple(speed), most)
    widest = num_granules if most is None else min(most, num_granules)
    every = [w for w in product(range(widest + 1), repeat=len(speed)) if sum(w) == num_granules]
    assert max(found) <= widest
    assert sum(found) == num_granules
    assert slowest(found) <= min(slowest(w) for w in every) + 1e-12


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.1, 3.0)), min_size=1, max_size=4), st.data())
@settings(max_examples=80, deadline=None)
def test_quotas_are_the_best_of_all_that_exist(lines, data):
    start = data.draw(st.lists(st.integers(0, 4), min_size=len(lines), max_size=len(lines)).filter(any))

    def seconds(d, quota):
        return 0.0 if quota == 0 else lines[d][0] + lines[d][1] * quota

    found = best_quotas(seconds, start)
    every = [q for q in product(range(sum(start) + 1), repeat=len(lines)) if sum(q) == sum(start)]
    assert sum(found) == sum(start)
    best = min(max(seconds(d, q) for d, q in enumerate(quotas)) for quotas in every)
    assert max(seconds(d, q) for d, q in enumerate(found)) <= best * (1 + 1e-6)


@given(st.lists(st.floats(0.2, 1.0), min_size=3, max_size=3), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_layer_split_is_within_5_percent_of_the_best_of_all_splits(speed, quota):
    home = uniform_layout(num_blocks=11, tensor=1, pipeline=3, data=1, num_micro_batches=quota)
    situation = situation_of(home, speeds=dict(enumerate(speed)), device_bytes=1e12)
    stages = home.replicas[0].stages

    def seconds(split):
        return situation.cost.makespan(split, quota, situation.throughputs, "1f1b")

    def split_at(a, b):
        borders = (0, a, b, 11)
        return tuple(
            Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=stage.ranks, shares=stage.shares)
            for s, stage in enumerate(stages)
        )

    best = min(seconds(split_at(a, b)) for a in range(1, 10) for b in range(a + 1, 11))
    found = fastest_stages(situation, stages, quota, "1f1b", widths=False, splits=True)
    assert seconds(found) <= best * 1.05


def test_no_split_is_sought_for_a_replica_without_micro_batches():
    home = uniform_layout(num_blocks=62, tensor=1, pipeline=8, data=1, num_micro_batches=1)
    stages = home.replicas[0].stages
    slow = situation_of(home, speeds={0: 0.5})
    assert fastest_stages(slow, stages, 0, "1f1b", widths=False, splits=True) is stages  # of 436 million


def test_a_shard_that_would_only_hold_its_stage_up_is_left_out():
    home = uniform_layout(num_blocks=8, tensor=2, pipeline=1, data=1, num_micro_batches=4)
    situation = situation_of(home, speeds={1: 0.02})
    assert best_stage(situation, home.replicas[0].stages[0]).ranks == (0,)


def test_an_empty_stage_gives_its_blocks_to_both_neighbours():
    home = uniform_layout(num_blocks=9, tensor=1, pipeline=3, data=1, num_micro_batches=4)
    merged = repaired(home, (0, 2))
    assert merged is not None
    assert [(s.first_block, s.stop_block) for s in merged.replicas[0].stages] == [(0, 4), (4, 9)]


def test_a_dropped_replica_leaves_its_micro_batches_to_the_others_and_its_ranks_as_standbys():
    home = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=3, num_micro_batches=7)
    smaller = repaired(home, (0, 1, 2, 4, 5), merges=False)
    assert smaller is not None
    assert len(smaller.replicas) == 2
    assert smaller.num_micro_batches == 7
    assert smaller.standbys == (2,)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 40))
def test_spread_quotas_always_have_the_wanted_sum(quotas, total):
    spread = spread_quotas(quotas, total)
    assert sum(spread) == total
    assert min(spread) >= 0


def test_the_price_of_staying_is_nothing_and_a_joiner_receives_its_whole_slice():
    home = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=8)
    model = situation_of(home).cost.model
    assert Prices(model, home, home.ranks).of(home).pause_seconds == 0.0
    slice_bytes = sum(
        (b.parameter_bytes + b.optimizer_bytes) // (2 if b.max_width > 1 else 1) for b in model.blocks[4:]
    )
    live = [rank for rank in home.ranks if rank != 3]
    without = repaired(home, live)
    assert without is not None
    assert Prices(model, without, live).of(home).moved_bytes == pytest.approx(slice_bytes, abs=8)


def test_blocks_that_nobody_holds_are_named():
    home = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=8)
    model = situation_of(home).cost.model
    assert uncovered_blocks(model, home, (0, 1, 2, 7)) == ()
    assert uncovered_blocks(model, home, (0, 1, 2, 6)) == (4, 5, 6, 7)


def test_unequal_shards_cover_a_block_only_when_their_slices_do():
    def replica(first_rank, shares):
        stage = Stage(first_block=0, stop_block=8, ranks=(first_rank, first_rank + 1), shares=shares)
        return Replica(stages=(stage,), num_micro_batches=1)

    home = Layout(num_blocks=8, replicas=(replica(0, (2, 1)), replica(2, (1, 1))))
    model = situation_of(home).cost.model
    assert uncovered_blocks(model, home, (0, 3)) == ()
    assert uncovered_blocks(model, home, (1, 2)) == tuple(range(1, 8))


def test_the_fullest_device_holds_weights_gradients_moments_and_the_schedules_live_activations():
    block = BlockCost(
        forward_flops_per_token=1.0,
        forward_flops_per_squared_length=0.0,
        parameter_bytes=10,
        optimizer_bytes=20,
        activation_bytes=3,
        max_width=4,
    )
    model = ModelSpec(blocks=(block,) * 4)
    replica = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=8).replicas[0]
    assert replica_peaks(model, replica) == (2 * (10 + 10 + 20 + 2 * 3) / 2, 2 * (10 + 10 + 20 + 1 * 3) / 2)
    assert replica_peaks(model, replica, scale=1.5)[0] == 2 * (40 + 3 * 3) / 2


@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=6, max_size=6).filter(lambda quotas: quotas[0] > 0),
)
@settings(max_examples=100, deadline=None)
def test_sizes_make_replicas_end_together_and_keep_the_batch(seconds, quotas):
    quotas = quotas[: len(seconds)]
    sizes = sizes_for(seconds, quotas, 100.0)
    assert sizes is not None
    assert sum(q * s for q, s in zip(quotas, sizes, strict=True)) == pytest.approx(sum(quotas))
    ends = [each * size for each, size, quota in zip(seconds, sizes, quotas, strict=True) if quota]
    assert max(ends) == pytest.approx(min(ends))


def test_sizes_stop_at_the_largest_that_memory_allows():
    assert sizes_for([1.0, 10.0], [1, 1], 1.5) == pytest.approx((1.5, 0.5))
    assert sizes_for([1.0, 1.0], [1, 0], 0.5) is None


@given(st.lists(st.sampled_from([0.4, 0.7, 1.0]), min_size=12, max_size=12), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_a_standby_goes_where_the_best_quotas_gain_most_of_all_places(speed, quota):
    home = uniform_layout(num_blocks=9, tensor=1, pipeline=3, data=4, num_micro_batches=quota)
    home = replace(home, standbys=(12,))
    situation = situation_of(home, speeds=dict(enumerate(speed)), device_bytes=1e12)

    def seconds(layout):
        def of(d, count):
            return situation.makespan(layout.replicas[d].stages, count, "1f1b")

        quotas = best_quotas(of, [replica.num_micro_batches for replica in layout.replicas])
        return max(of(d, count) for d, count in enumerate(quotas))

    def wider(d, s):
        stages = list(home.replicas[d].stages)
        old = stages[s]
        stages[s] = best_stage(situation, replace(old, ranks=(*old.ranks, 12), shares=(1, 1)))
        replicas = list(home.replicas)
        replicas[d] = replace(replicas[d], stages=tuple(stages))
        return replace(home, replicas=tuple(replicas), standbys=())

    found = [seconds(layout) for layout in Standby().propose(situation, home)] or [seconds(home)]
    every = [seconds(wider(d, s)) for d, s in product(range(4), range(3))]
    assert found[0] == pytest.approx(min(*every, seconds(home)), rel=1e-9)


def test_work_for_standbys_follows_the_number_of_different_replicas_not_of_all():
    def makespans(data):
        home = uniform_layout(num_blocks=9, tensor=2, pipeline=3, data=data, num_micro_batches=8 * data)
        base = replace(home, standbys=tuple(range(6 * data, 6 * data + 4)))
        situation = situation_of(base, speeds={0: 0.5})
        asked: list[float] = []

        def counted(*question):
            asked.append(pipeline_makespan(*question))
            return asked[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(situations, "pipeline_makespan", counted)
            list(Standby().propose(situation, base))
        return len(asked)

    assert makespans(96) < 2 * makespans(12)
