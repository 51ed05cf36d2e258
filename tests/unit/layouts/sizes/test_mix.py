import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.codec import layout_from_proto, layout_to_proto
from evenkeel.layouts.layout import Layout, LayoutError, Replica, Stage
from evenkeel.layouts.sizes.mix import Mix, even_mix, mixed
from evenkeel.layouts.sizes.taper import one_f_one_b_seconds

LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)


@st.composite
def rules(draw):
    counts = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    weights = tuple(draw(st.lists(st.integers(300, 1500), min_size=len(counts), max_size=len(counts))))
    return Mix(
        counts=counts,
        weights=weights,
        token_cost=1.0,
        square_cost=draw(st.floats(0.0, 0.1)),
        fill=draw(st.integers(0, 7)),
    )


@given(rules(), LENGTHS, st.integers(1, 4000))
@settings(max_examples=200, deadline=None)
def test_every_document_is_in_exactly_one_micro_batch_and_none_is_too_large_or_empty(rule, lengths, max_tokens):
    packs = mixed(rule, lengths, max_tokens)
    if packs is None:
        return
    assert len(packs) == rule.num_micro_batches
    assert sorted(number for pack in packs for number in pack) == list(range(len(lengths)))
    assert all(len(pack) >= 1 and sum(lengths[number] for number in pack) <= max_tokens for pack in packs)


@given(rules(), LENGTHS)
@settings(max_examples=100, deadline=None)
def test_documents_find_a_place_whenever_there_are_enough_of_them_and_memory_is_no_limit(rule, lengths):
    assert (mixed(rule, lengths, sum(lengths)) is None) == (len(lengths) < rule.num_micro_batches)


@given(rules(), LENGTHS, st.integers(1, 4000))
@settings(max_examples=50, deadline=None)
def test_every_rank_computes_the_same_assignment(rule, lengths, max_tokens):
    assert mixed(rule, lengths, max_tokens) == mixed(rule, list(lengths), max_tokens)


@given(st.lists(st.integers(8, 100), min_size=80, max_size=120), rules())
@settings(max_examples=60, deadline=None)
def test_groups_end_within_one_document_of_each_other(lengths, rule):
    rule = replace(rule, fill=0)
    packs = mixed(rule, lengths, sum(lengths))
    assert packs is not None
    capacities = [count * weight for count, weight in zip(rule.counts, rule.weights, strict=True)]
    left = iter(packs)
    times = []
    for count, capacity in zip(rule.counts, capacities, strict=True):
        times.append(sum(rule.cost(lengths[n]) for _ in range(count) for n in next(left)) / capacity)
    total, longest = sum(map(rule.cost, lengths)), rule.cost(max(lengths))
    assert max(times) <= (total + len(times) * longest) / sum(capacities) * (1.0 + 1e-9)


def test_replicas_come_first_where_one_micro_batch_cannot_be_as_short_as_the_others():
    rule = even_mix((2, 2), token_cost=1.0, square_cost=0.0)
    packs = mixed(rule, [10, 10, 4, 4, 3, 3], 100)
    assert packs is not None
    loads = [sum([10, 10, 4, 4, 3, 3][number] for number in pack) for pack in packs]
    assert loads[0] + loads[1] == loads[2] + loads[3] == 17


def test_a_pipeline_is_done_sooner_with_documents_dealt_out_for_its_stages_than_with_even_micro_batches():
    rng = random.Random(1)
    quotas = (8,) * 6
    before = after = 0.0
    for _ in range(5):
        lengths = [min(384, 20 + round(rng.lognormvariate(4.8, 0.6))) for _ in range(90)]
        for fill in (0, 3):
            packs = mixed(even_mix(quotas, token_cost=1.0, square_cost=0.0, fill=fill), lengths, 600)
            assert packs is not None
            groups = [[sum(lengths[n] for n in pack) for pack in packs[8 * d : 8 * d + 8]] for d in range(6)]
            slowest = max(one_f_one_b_seconds(loads, 3) for loads in groups)
            before, after = before + slowest * (fill == 0), after + slowest * (fill == 3)
    assert after < 0.93 * before


def test_a_slow_replicas_micro_batches_are_smaller_by_as_much_as_the_rule_says():
    rule = Mix(counts=(4, 4), weights=(500, 1500), token_cost=1.0, square_cost=0.0)
    packs = mixed(rule, [10] * 160, 1000)
    assert packs is not None
    assert [len(pack) for pack in packs] == [10] * 4 + [30] * 4
    assert rule.scales((4, 4)) == (0.5, 1.5)
    assert rule.scales((6, 2)) == pytest.approx((5 / 6, 1.5))


def layout_with(mix):
    stage = Stage(first_block=0, stop_block=2, ranks=(0,), shares=(1,))
    return Layout(num_blocks=2, replicas=(Replica(stages=(stage,), num_micro_batches=4),), mix=mix)


def test_a_mix_survives_the_wire():
    layout = layout_with(even_mix((4,), token_cost=3.0, square_cost=0.25, fill=3, max_scale=1.25))
    assert layout_from_proto(layout_to_proto(layout)) == layout
    assert layout_from_proto(layout_to_proto(layout_with(None))).mix is None


def test_a_mix_for_another_number_of_micro_batches_is_refused():
    with pytest.raises(LayoutError, match="5 micro-batches, the replicas run 4"):
        layout_with(even_mix((5,), token_cost=1.0, square_cost=0.0))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": (0,)},
        {"weights": (1, 2)},
        {"token_cost": -1.0},
        {"token_cost": 0.0},
        {"square_cost": float("nan")},
        {"fill": -1},
        {"max_scale": 0.9},
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(change):
    with pytest.raises(ValueError, match="mix:"):
        Mix(**{"counts": (4,), "weights": (1,), "token_cost": 1.0, "square_cost": 0.0, **change})
