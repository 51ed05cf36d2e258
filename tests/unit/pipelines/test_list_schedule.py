"""The list schedule and what improves it: machine code against plain Python."""

from math import inf
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.pipelines.case import Case, allowed
from evenkeel.pipelines.search.climbing.changes import balanced, neighbour
from evenkeel.pipelines.search.climbing.climb import mapped, ordered
from evenkeel.pipelines.search.climbing.improve import first_priorities, improve
from evenkeel.pipelines.search.dispatching.dispatch import list_schedule
from evenkeel.pipelines.search.dispatching.network import Network, network_of
from evenkeel.pipelines.search.starts.assignments import Assignment, proposals
from evenkeel.pipelines.search.starts.balance import Balance
from evenkeel.pipelines.search.tables import table_of
from tests.unit.pipelines.documents import small_cases
from tests.unit.pipelines.plain_list_schedule import plain_list_schedule


def networks(case: Case) -> list[Network]:
    balance = Balance(case)
    return [network_of(case, each.partition, each.placement) for each in proposals(case) if balance.fits(each)]


def limits(case: Case) -> tuple[float | None, float]:
    return (None, inf) if case.memory_limit is None else (allowed(case.memory_limit), allowed(case.memory_limit))


@settings(max_examples=40, deadline=None)
@given(small_cases(), st.randoms(use_true_random=False), st.sampled_from([0.9, 1.0, 1.1]))
def test_the_same_operations_start_at_the_same_times(case: Case, random: Random, aim: float) -> None:
    plain, limit = limits(case)
    for network in networks(case):
        # Some are alike, so that ties count.
        drawn = [random.choice((random.random() * 9.0, random.randint(0, 5))) for _ in network.durations]
        for is_reverse in (False, True):
            starts, makespan = plain_list_schedule(network, drawn, limit=plain, is_reverse=is_reverse)
            found = list_schedule(network.stages, np.array(drawn, dtype=float), limit, inf, is_reverse, inf)
            assert (found.starts.tolist(), found.makespan) == (starts, makespan)
        late = [-(start + length) for start, length in zip(starts, network.durations, strict=True)]
        starts, end = plain_list_schedule(network, late, limit=plain, target=aim * makespan)
        found = list_schedule(network.stages, np.array(late), limit, aim * makespan, False, inf)
        assert (found.starts.tolist(), found.makespan) == (starts, end)


@settings(max_examples=20, deadline=None)
@given(small_cases())
def test_a_schedule_that_is_given_up_would_have_been_too_long(case: Case) -> None:
    _, limit = limits(case)
    for network in networks(case):
        stages = network.stages
        priorities = first_priorities(stages)
        whole = list_schedule(stages, priorities, limit, inf, False, inf)
        assert list_schedule(stages, priorities, limit, inf, False, whole.makespan).makespan == whole.makespan
        assert list_schedule(stages, priorities, limit, inf, False, 0.99 * whole.makespan).makespan == inf


@settings(max_examples=20, deadline=None)
@given(small_cases(), st.integers(0, 9))
def test_improving_keeps_the_best_of_its_rounds(case: Case, seed: int) -> None:
    _, limit = limits(case)
    for network in networks(case):
        best = inf
        for rounds in (1, 2, 4):
            generator = np.random.default_rng(seed)
            found = improve(network.stages, first_priorities(network.stages), inf, limit, rounds, 1.0, generator, inf)
            assert found.makespan <= best
            again = list_schedule(network.stages, found.priorities, limit, found.target, False, inf)
            assert (again.makespan, again.starts.tolist()) == (found.makespan, found.starts.tolist())
            best = found.makespan


@settings(max_examples=25, deadline=None)
@given(small_cases(), st.integers(0, 9))
def test_changes_cover_the_layers_and_balancing_evens(case: Case, seed: int) -> None:
    table, balance, generator = table_of(case), Balance(case), np.random.default_rng(seed)
    for start in filter(balance.fits, proposals(case)):
        sizes, devices = np.array(start.partition), np.array(start.placement)
        even = balanced(table, sizes, devices, generator, 50, False)
        evened = Assignment(tuple(even[0].tolist()), tuple(even[1].tolist()))
        assert max(balance.windows(evened)) <= max(balance.windows(start)) + 1e-9
        for _ in range(20):
            sizes, devices = neighbour(table, sizes, devices, generator)
            assert sizes.sum() == len(case.layers)
            assert sizes.min() >= 1
            assert len(sizes) == len(devices)
            assert set(devices.tolist()) <= set(range(case.devices))


@settings(max_examples=25, deadline=None)
@given(small_cases(), st.integers(0, 9))
def test_priorities_of_the_same_cut_stay_and_of_another_rise_along_each_micro_batch(case: Case, seed: int) -> None:
    table, balance, generator = table_of(case), Balance(case), np.random.default_rng(seed)
    for start in filter(balance.fits, proposals(case)):
        standing = ordered(table, np.array(start.partition), np.array(start.placement), 2, generator)
        assert mapped(table, standing, standing.sizes).tolist() == standing.ordering.priorities.tolist()
        if standing.ordering.target == inf:
            continue  # no times
        whole = mapped(table, standing, np.ones(len(case.layers), dtype=np.int64))
        rows = whole.reshape(-1, case.micro_batches, len(case.layers))
        assert (np.diff(rows[0], axis=1) >= -1e-9).all()
        assert (np.diff(rows[1], axis=1) <= 1e-9).all()
