"""Annealing over single layers: schedules are plans, what is kept of them is true, nothing ends too early."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.pipelines.case import Case, Layer
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.proofs.exact import prove
from evenkeel.pipelines.search.annealing.anneal import Dealt, Terms, anneal, standing_deal, within
from evenkeel.pipelines.search.annealing.express import Judge, express_pass
from evenkeel.pipelines.search.annealing.lines import by_layer, rows_of
from evenkeel.pipelines.search.annealing.pushed_right import idle_to_come, latest_starts
from evenkeel.pipelines.search.annealing.reheat import annealed
from evenkeel.pipelines.search.annealing.soft_maximum import excess, soft_end, total_of
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.climbing.climb import ordered
from evenkeel.pipelines.search.climbing.improve import first_priorities
from evenkeel.pipelines.search.dispatching.network import network_of, plan_of
from evenkeel.pipelines.search.starts.assignments import proposals
from evenkeel.pipelines.search.starts.balance import window_loads
from evenkeel.pipelines.search.starts.deals import Deal, change, deal_of, layers_of, stages_dealt
from evenkeel.pipelines.search.starts.head_sets import head_sets, is_head_heavy, with_set
from evenkeel.pipelines.search.tables import Floats, Ints, Stages, Table, stages_of, table_of
from tests.unit.pipelines.documents import document, small_cases

_NO_IDLE = np.empty((0, 0))


def unlimited_cases() -> st.SearchStrategy[Case]:
    return small_cases().map(lambda case: replace(case, memory_limit=None))


def judge_of(most: float, base: float = 0.0) -> Judge:
    return Judge(base, most, _NO_IDLE, inf, 0.0)


def first_wanted(stages: Stages, rows: Ints, num_layers: int) -> Floats:
    kinds, num = stages.times.shape
    wanted = np.zeros((kinds * num_layers, stages.micro_batches))
    wanted[rows] = first_priorities(stages).reshape(kinds, -1, num).swapaxes(1, 2).reshape(kinds * num, -1)
    return wanted


def makespan_of(case: Case, stages: Stages, rows: Ints, sizes: list[int], by_row: Floats) -> float:
    """By the project's own evaluation, which raises if anything is left out or out of turn."""
    starts = by_row[rows].reshape(*stages.times.shape, -1).swapaxes(1, 2).reshape(-1)
    network = network_of(case, sizes, stages.device.tolist())
    return evaluate(case, plan_of(network, starts.tolist())).makespan


def begun(case: Case, seed: int = 0) -> Iterator[tuple[Table, Terms, Dealt]]:
    table, generator = table_of(case), np.random.default_rng(seed)
    for start in proposals(case):
        standing = ordered(table, np.array(start.partition), np.array(start.placement), 2, generator)
        makespan = standing.ordering.makespan
        terms = Terms(0.9 * makespan, makespan, 1.05, 0.8, True, np.empty(0, dtype=np.int64), 0.0)
        stages, rows = stages_of(table, standing.sizes, standing.devices), rows_of(standing.sizes, len(table.sums))
        wanted = by_layer(table, standing.sizes, stages, first_wanted(stages, rows, len(case.layers)))
        yield table, terms, standing_deal(table, deal_of(standing.sizes, standing.devices), wanted, terms, 4)


@settings(max_examples=40, deadline=None)
@given(unlimited_cases(), st.booleans())
def test_a_pass_is_a_plan_no_longer_than_it_says(case: Case, is_express: bool) -> None:
    table = table_of(case)
    for start in proposals(case):
        sizes = np.array(start.partition)
        stages, rows = stages_of(table, sizes, np.array(start.placement)), rows_of(sizes, len(table.sums))
        wanted = first_wanted(stages, rows, len(case.layers))
        for _ in range(3):
            starts = np.zeros(wanted.shape)
            passed = express_pass(stages, rows, wanted, is_express, False, judge_of(inf), starts)
            assert makespan_of(case, stages, rows, sizes.tolist(), starts) <= passed.makespan + 1e-6
            lengths = stages.times.reshape(-1)
            ends = (starts[rows] + lengths[:, None]).max(axis=1)
            for device, end in enumerate(passed.ends):
                of_device = np.tile(stages.device == device, len(stages.times))
                assert end == pytest.approx(ends[of_device].max(initial=0.0))
            assert passed.begun == rows.shape[0] * case.micro_batches
            wanted = latest_starts(stages, rows, starts)
            assert (np.diff(wanted[rows], axis=1) >= -1e-6).all()
            idle = idle_to_come(stages, rows, starts, passed.ends, passed.makespan / 100)
            work = np.bincount(np.tile(stages.device, len(stages.times)), lengths, case.devices) * case.micro_batches
            assert idle[:, 0] == pytest.approx(passed.ends - work)


@settings(max_examples=25, deadline=None)
@given(unlimited_cases())
def test_the_first_micro_batch_goes_through_without_a_stop(case: Case) -> None:
    table = table_of(case)
    for start in proposals(case):
        sizes = np.array(start.partition)
        stages, rows = stages_of(table, sizes, np.array(start.placement)), rows_of(sizes, len(table.sums))
        wanted = first_wanted(stages, rows, len(case.layers))
        starts = np.zeros(wanted.shape)
        express_pass(stages, rows, wanted, True, False, judge_of(inf), starts)
        way = 0.0
        for stage in range(len(sizes)):
            if stage and stages.device[stage] != stages.device[stage - 1]:
                way += case.communication
            assert starts[rows[stage], 0] == pytest.approx(way)
            way += stages.times[0, stage]


@settings(max_examples=25, deadline=None)
@given(unlimited_cases())
def test_a_pass_that_is_ended_would_have_been_above_what_it_may(case: Case) -> None:
    for table, terms, dealt in begun(case):
        sizes, devices = stages_dealt(dealt.deal)
        stages, rows = stages_of(table, sizes, devices), rows_of(sizes, len(table.sums))
        starts, base = np.zeros(dealt.wanted.shape), 0.5 * terms.base
        whole = express_pass(stages, rows, dealt.wanted, True, False, judge_of(inf, base), starts)
        assert whole.total == pytest.approx(sum(excess(end, base) for end in whole.ends))
        for part in (0.2, 0.999, 1.001):
            most = part * whole.total
            found = express_pass(stages, rows, dealt.wanted, True, False, judge_of(most, base), starts)
            assert (found.makespan == inf) == (part < 1.0)


@settings(max_examples=15, deadline=None)
@given(unlimited_cases(), st.integers(0, 9))
def test_what_an_annealing_keeps_is_what_its_plan_is_worth(case: Case, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for table, terms, first in begun(case, seed):
        heat = 0.05 * terms.base
        *kept, operations = anneal(table, layers_of(table), first, first, first, terms, heat, 30_000, generator)
        assert operations >= 30_000
        _, best, shortest = kept
        assert best.total <= first.total
        assert shortest.makespan <= first.makespan
        for dealt in kept:
            sizes, devices = stages_dealt(dealt.deal)
            stages, rows = stages_of(table, sizes, devices), rows_of(sizes, len(table.sums))
            starts = np.zeros(dealt.wanted.shape)
            passed = express_pass(stages, rows, dealt.wanted, True, False, judge_of(inf, terms.base), starts)
            assert passed.ends == pytest.approx(dealt.ends)
            assert passed.makespan == pytest.approx(dealt.makespan)
            assert dealt.total == pytest.approx(sum(excess(end, terms.base) for end in dealt.ends))
            assert makespan_of(case, stages, rows, sizes.tolist(), starts) <= dealt.makespan + 1e-6


@settings(max_examples=25, deadline=None)
@given(unlimited_cases(), st.integers(0, 9))
def test_a_deal_is_its_stages_and_a_change_keeps_the_layers(case: Case, seed: int) -> None:
    generator, layers = np.random.default_rng(seed), layers_of(table_of(case))
    for start in proposals(case):
        deal = deal_of(np.array(start.partition), np.array(start.placement))
        sizes, devices = stages_dealt(deal)
        assert (tuple(sizes.tolist()), tuple(devices.tolist())) == (start.partition, start.placement)
        for _ in range(30):
            change(deal, layers.kinds, case.devices, generator)
            sizes, devices = stages_dealt(deal)
            assert sizes.sum() == len(case.layers)
            assert np.repeat(devices, sizes).tolist() == deal.devices.tolist()
            assert set(devices.tolist()) <= set(range(case.devices))


@given(st.floats(1.0, 1e6), st.lists(st.floats(0.0, 2.0), min_size=1, max_size=9))
def test_the_soft_maximum_is_between_the_mean_of_what_counts_and_the_last_end(base: float, ends: list[float]) -> None:
    above = [max(1.0, end) * base for end in ends]
    soft = soft_end(sum(excess(end, base) for end in above), len(above), base)
    assert np.mean(above) * (1 - 1e-9) <= soft <= max(above) * (1 + 1e-9)
    assert soft_end(total_of(soft, 3, base), 3, base) == pytest.approx(soft)


NEMOTRON = case_from_json(document("simpipe", "simpipe-nemotron-nano-v2-9B-p8-m16"))


def test_beside_a_heavy_head_stands_what_leaves_the_others_least() -> None:
    table, generator = table_of(NEMOTRON), np.random.default_rng(0)
    layers = layers_of(table)
    sets = head_sets(table, layers, 88_900.0)
    mamba = layers.kinds[next(layer for layer, each in enumerate(NEMOTRON.layers) if each.forward == 268)]
    assert (mamba, mamba) in sets[:2]
    for chosen in sets[:5]:
        deal = Deal(generator.integers(0, 8, len(NEMOTRON.layers)), np.zeros(len(NEMOTRON.layers), dtype=np.int64))
        deal = with_set(layers, deal, chosen, generator)
        lock = deal.devices[-1:].copy()
        deal = within(table, layers, deal, 88_900.0, 20_000, lock, generator)
        beside = layers.kinds[:-1][deal.devices[:-1] == lock[0]]
        assert sorted(beside.tolist()) == sorted(chosen)
        assert window_loads(table, *stages_dealt(deal)).max() <= 88_900.0


@given(seed=st.integers(0, 2**32 - 1), first=st.integers(0, 50), size=st.integers(1, 4))
def test_a_set_that_layers_in_a_row_make_stands_there_and_what_was_and_is_not_beside_the_head_does_not_move(
    seed: int, first: int, size: int
) -> None:
    table, generator = table_of(NEMOTRON), np.random.default_rng(seed)
    layers = layers_of(table)
    chosen = layers.kinds[first : first + size].tolist()
    before = Deal(generator.permutation(np.arange(len(layers.kinds)) % 8), np.zeros(len(layers.kinds), dtype=np.int64))
    after = with_set(layers, before, chosen, generator)
    head = after.devices[-1]
    beside = np.flatnonzero(after.devices[:-1] == head)
    assert beside.tolist() == list(range(beside[0], beside[0] + size))
    assert beside[0] <= first
    assert sorted(layers.kinds[beside].tolist()) == sorted(chosen)
    kept = [np.count_nonzero(deal.devices != head) for deal in (before, after)]
    assert kept[1] - kept[0] == np.count_nonzero(before.devices == head) - size - 1
    elsewhere = (before.devices != head) & (after.devices != head)
    assert (before.devices == after.devices)[elsewhere].all()


def test_only_a_heavy_head_is_built_round() -> None:
    assert is_head_heavy(table_of(NEMOTRON))
    assert not is_head_heavy(table_of(replace(NEMOTRON, speeds=(1.0,) * 7 + (0.5,))))
    light = table_of(replace(NEMOTRON, layers=NEMOTRON.layers[:-1]))
    assert not is_head_heavy(light)
    assert head_sets(light, layers_of(light), inf) == []


def test_annealing_betters_a_plan_and_the_same_seed_gives_the_same() -> None:
    table = table_of(NEMOTRON)
    start = next(proposals(NEMOTRON))
    found = []
    for _ in range(2):
        generator, budget = np.random.default_rng(0), Budget(4_000)
        standing = ordered(table, np.array(start.partition), np.array(start.placement), 4, generator)
        budget.charge(400)
        found.append(annealed(table, [standing], budget, 1.0, 0.0, 86_802.0, generator))
        assert found[-1].ordering.makespan < 0.97 * standing.ordering.makespan
        assert budget.spent < 1.2
    assert found[0].ordering.starts.tolist() == found[1].ordering.starts.tolist()
    network = network_of(NEMOTRON, found[0].sizes.tolist(), found[0].devices.tolist())
    plan = plan_of(network, found[0].ordering.starts.tolist())
    assert evaluate(NEMOTRON, plan).makespan == found[0].ordering.makespan


def test_melts_of_a_small_case_end_where_an_exact_search_does() -> None:
    head, layer = (Layer(forward=n, backward_input=n, backward_weight=m) for n, m in ((12, 8), (3, 3)))
    heavy, light = replace(layer, forward=4, backward_input=5), replace(layer, forward=2, backward_weight=2)
    case = Case(name="small", devices=3, micro_batches=4, layers=(layer, heavy, light, layer, heavy, light, head))
    table, generator, budget = table_of(case), np.random.default_rng(0), Budget(150_000)
    assert is_head_heavy(table)
    standing = ordered(table, np.array([1, 2, 4]), np.array([0, 1, 2]), 4, generator)
    budget.charge(100)
    found = annealed(table, [standing], budget, 1.0, 0.0, 1.0, generator)
    assert found.ordering.makespan < standing.ordering.makespan
    plan = plan_of(network_of(case, found.sizes.tolist(), found.devices.tolist()), found.ordering.starts.tolist())
    assert evaluate(case, plan).makespan == found.ordering.makespan
    proof = prove(case, plan, seconds_per_choice=20.0)
    assert proof.is_optimal
    assert found.ordering.makespan == evaluate(case, proof.plan).makespan
