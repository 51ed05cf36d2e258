"""Widths and splits where memory is short, beside all that exist."""

import math
from dataclasses import replace
from itertools import combinations, pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.exact import HEADS, model_with_activations, whole_shares
from benchmarks.planning.solver.small_jobs import WORKLOAD
from evenkeel.layouts.layout import Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.levers.balance.cuts import best_stage
from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.levers.balance.tuning import Tuner
from evenkeel.planning.situation import Situation


def short_of_memory(tensor, pipeline, num_layers, quota, speeds, filled):
    """A job of one replica whose fullest device has so many times the bytes that it needs when all is even."""
    model = model_with_activations(num_layers)
    home = uniform_layout(
        num_blocks=len(model.blocks), tensor=tensor, pipeline=pipeline, data=1, num_micro_batches=quota
    )
    return Situation(
        layout=home,
        home=home,
        throughputs=dict(zip(home.ranks, speeds, strict=False)),
        cost=CostModel(model, WORKLOAD),
        holders=frozenset(home.ranks),
        device_bytes=filled * max(replica_peaks(model, home.replicas[0])),
    )


def every_shape(situation):
    """All stages that keep their ranks in order, each with at least one head or left out."""
    stages, num_blocks = situation.home.replicas[0].stages, situation.home.num_blocks
    cuts = [
        [
            (kept, shares)
            for count in range(1, len(stage.ranks) + 1)
            for kept in combinations(stage.ranks, count)
            for shares in whole_shares(HEADS, count)
        ]
        for stage in stages
    ]
    for inner in combinations(range(1, num_blocks), len(stages) - 1):
        for cells in product(*cuts):
            yield tuple(
                Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares)
                for (first, stop), (ranks, shares) in zip(pairwise((0, *inner, num_blocks)), cells, strict=True)
            )


@given(
    st.sampled_from([(1, 3), (2, 1), (2, 2), (3, 1)]),
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.sampled_from([0.3, 0.6, 1.0]), min_size=6, max_size=6),
    st.floats(0.5, 1.5),
)
@settings(max_examples=30, deadline=None)
def test_what_fits_is_as_fast_as_the_fastest_of_all_that_fit(shape, num_layers, quota, speeds, filled):
    situation = short_of_memory(*shape, num_layers, max(1, quota), speeds, filled)
    stages = situation.home.replicas[0].stages
    found = fastest_stages(situation, stages, quota, "1f1b", widths=True, splits=True)
    best = math.inf
    for shape_ in every_shape(situation):
        if not situation.replica_excess_bytes(Replica(stages=shape_, num_micro_batches=quota)):
            best = min(best, situation.makespan(shape_, quota, "1f1b"))
    if found is None:
        assert best == math.inf
    else:
        assert not situation.replica_excess_bytes(Replica(stages=found, num_micro_batches=quota))
        # Equal stages stay as they are although another order of shares may cut the vocabulary better.
        assert situation.makespan(found, quota, "1f1b") <= best * 1.005


def test_a_fast_device_gets_what_its_memory_holds_and_the_rest_is_dealt_on():
    situation = short_of_memory(2, 1, 3, 4, [1.0, 0.2], 1.35)
    assert best_widths(HEADS, (1.0, 0.2)) == (5, 1)
    tuned = Tuner(situation).tuned(situation.home, {"tensor_width"})
    assert tuned.replicas[0].stages[0].shares == (2, 1)
    assert not situation.excess_bytes(tuned)
    assert situation.seconds(tuned) < situation.seconds(situation.home)


def test_splits_of_many_blocks_are_sought_by_dynamic_programming_and_fit():
    situation = short_of_memory(2, 4, 40, 16, [1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.25], 1.15)
    tuned = Tuner(situation).tuned(situation.home, {"tensor_width", "layer_split"})
    assert not situation.excess_bytes(tuned)
    assert situation.seconds(tuned) < 0.75 * situation.seconds(situation.home)


def test_a_slow_rank_is_left_out_of_a_stage_of_blocks_that_are_not_sharded():
    each = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0)
    sharded, whole = replace(each, max_width=8), replace(each, forward_flops_per_token=4.0)
    model = ModelSpec(blocks=(*[sharded] * 32, whole))
    home = uniform_layout(num_blocks=33, tensor=2, pipeline=2, data=1, num_micro_batches=2)
    situation = Situation(
        layout=home,
        home=home,
        throughputs=dict(zip(home.ranks, (1.0, 1.0, 1.0, 0.5), strict=True)),
        cost=CostModel(model, WORKLOAD),
        holders=frozenset(home.ranks),
    )
    last = replace(home.replicas[0].stages[1], first_block=31)
    assert best_stage(situation, last).ranks == (2,)
