"""Climbs by small changes of the assignment, each judged by the order of work that it allows.

Late acceptance (Burke and Bykov, EJOR 258, 2017): a change stays if it is no worse than what stood some changes ago. Of
some random changes the best balanced is looked at, by work alone or by work and what the devices idled at the start of
the standing schedule by turns, and what cannot be better by its work alone is not looked at. One call makes a counted
number of schedules, so that whoever waits can end a search between two calls.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.climbing.changes import below, is_same, neighbour
from evenkeel.pipelines.search.climbing.improve import Ordering, first_priorities, improve
from evenkeel.pipelines.search.climbing.reorder import SWAPS_A_SCHEDULE, reorder
from evenkeel.pipelines.search.starts.balance import early_idle, fits, may_end, score_of, window_loads, works
from evenkeel.pipelines.search.tables import Floats, Ints, Table, durations_of, stage_times, stages_of

_FORESEES = 0.5  # part of the changes that are chosen by what devices idled, not by work alone
_PATIENCE = 10  # times the length of the history: then it begins anew from its best
_AGAIN = 1.004  # what a new beginning accepts, over the best
_MOST_DRAWS = 100  # random changes of which some are looked at
_MOST_IDLE = 100  # times in a row that none could be
_LOOKED_AT = np.array([1, 2, 8])


class Standing(NamedTuple):
    """An assignment, the order of its work, and what each device idles early in it."""

    sizes: Ints
    devices: Ints
    ordering: Ordering
    idle: Floats


class Climber(NamedTuple):
    """One line of search.

    Attributes:
        standing: Where it stands.
        best: The best it saw.
        history: Its makespans of late, by step.
        steps: How many it made.
        stale: How many of them since it was better than ever, or began anew there.
    """

    standing: Standing
    best: Standing
    history: Floats
    steps: int
    stale: int


def ordered(table: Table, sizes: Ints, devices: Ints, rounds: int, generator: np.random.Generator) -> Standing:
    """An assignment with the best order that some rounds find from scratch."""
    stages = stages_of(table, sizes, devices)
    ordering = improve(stages, first_priorities(stages), np.inf, table.limit, rounds, 0.0, generator, np.inf)
    return standing_of(table, sizes, devices, ordering)


@compiled
def standing_of(table: Table, sizes: Ints, devices: Ints, ordering: Ordering) -> Standing:
    """An assignment with an order of its work that is known."""
    stages = stages_of(table, sizes, devices)
    num_devices = table.speeds.shape[0]
    idle = early_idle(devices, durations_of(stages), ordering.starts, ordering.makespan, num_devices)
    return Standing(sizes, devices, ordering, idle)


def climber_of(standing: Standing, history: int) -> Climber:
    """A climber that begins here."""
    return Climber(standing, standing, np.full(history, standing.ordering.makespan * 1.01), 0, 0)


@compiled
def mapped(table: Table, standing: Standing, sizes: Ints) -> Floats:
    """Priorities for other sizes: those of the layers with which each operation begins in what stands."""
    old = standing.ordering.priorities
    times = stage_times(table, standing.sizes, standing.devices)
    kinds, count, num = table.sums.shape[0], standing.sizes.shape[0], sizes.shape[0]
    priorities = np.empty(kinds * table.micro_batches * num)
    first = 0
    stage_f = start_f = stage_b = start_b = 0
    for stage in range(num):
        # F begins with the first layer, B and W with the last one.
        while first >= start_f + standing.sizes[stage_f]:
            start_f += standing.sizes[stage_f]
            stage_f += 1
        last = first + sizes[stage] - 1
        while last >= start_b + standing.sizes[stage_b]:
            start_b += standing.sizes[stage_b]
            stage_b += 1
        stop = start_b + standing.sizes[stage_b]
        for kind in range(kinds):
            sums, source = table.sums[kind], stage_b if kind else stage_f
            part = sums[stop] - sums[last + 1] if kind else sums[first] - sums[start_f]
            whole = sums[stop] - sums[start_b] if kind else sums[start_f + standing.sizes[stage_f]] - sums[start_f]
            shift = times[kind, source] * part / whole if part > 0 else 0.0
            for micro_batch in range(table.micro_batches):
                row = kind * table.micro_batches + micro_batch
                priorities[row * num + stage] = old[row * count + source] + shift
        first = last + 1
    return priorities


@compiled
def climb(
    table: Table, climber: Climber, schedules: int, goal: float, swaps: int, generator: np.random.Generator
) -> tuple[Climber, int]:
    """Climbs on.

    Args:
        table: The case.
        climber: Where to begin; left as it is but for its history.
        schedules: How many schedules to make (forwards; one more may be).
        goal: Ends there.
        swaps: Of neighbours, after which an order is judged; each some part of a schedule.
        generator: Source of the changes.

    Returns:
        Where it got to, and how many schedules that took; fewer than asked for if there is nothing more to do.
    """
    standing, best, history, steps, stale = climber
    made = idle = 0
    while made < schedules and best.ordering.makespan > goal and idle < _MOST_IDLE:
        now, slot = standing.ordering.makespan, steps % history.shape[0]
        sizes, devices = _candidate(table, standing, max(history[slot], now), generator)
        if sizes.shape[0] == 0:
            idle += 1
            continue
        idle = 0
        stages = stages_of(table, sizes, devices)
        priorities, worst = mapped(table, standing, sizes), max(history[slot], now)
        found = improve(stages, priorities, standing.ordering.target, table.limit, 2, 0.0, generator, worst)
        made += 2
        if swaps > 0 and found.makespan <= worst:
            starts, makespan, swapped = reorder(stages, found.starts, table.limit, swaps, goal, generator)
            made += swapped // SWAPS_A_SCHEDULE
            if makespan < found.makespan:
                found = Ordering(starts, makespan, starts, np.inf)
        if found.makespan <= worst:
            standing = standing_of(table, sizes, devices, found)
            if found.makespan < best.ordering.makespan:
                best, stale = standing, -1
        history[slot] = standing.ordering.makespan
        steps, stale = steps + 1, stale + 1
        if stale >= _PATIENCE * history.shape[0]:
            standing, stale = best, 0
            for slot in range(history.shape[0]):
                history[slot] = best.ordering.makespan * _AGAIN
    return Climber(standing, best, history, steps, stale), made


@compiled
def _candidate(table: Table, standing: Standing, worst: float, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """The best balanced of a few random changes; empty if none could be accepted."""
    best, lowest = (standing.sizes[:0], standing.devices[:0]), (np.inf, np.inf)
    foresees = generator.random() < _FORESEES
    wanted, seen = _LOOKED_AT[below(generator, _LOOKED_AT.shape[0])], 0
    for _ in range(_MOST_DRAWS):
        sizes, devices = neighbour(table, standing.sizes, standing.devices, generator)
        if generator.random() < 0.3:
            sizes, devices = neighbour(table, sizes, devices, generator)
        if not may_end(table, sizes, devices, worst) or not fits(table, sizes, devices):
            continue
        if is_same(sizes, devices, standing.sizes, standing.devices):
            continue
        score = score_of(window_loads(table, sizes, devices))
        if score[0] > worst:
            continue
        seen += 1
        if foresees:
            score = score_of(works(table, sizes, devices) + standing.idle)
        if score < lowest:
            best, lowest = (sizes, devices), score
        if seen == wanted:
            break
    return best
