"""Betters the order of an assignment's operations by swaps of neighbours.

Tabu search as for job shops (Nowicki and Smutnicki, Management Science 42, 1996; estimates as in Taillard, ORSA Journal
on Computing 6, 1994): of the neighbours of one device on a longest path those are swapped that promise the shortest
schedule, even where that is longer than what stands; when that helps no more, some are swapped at random. This reaches
orders that no list schedule makes: devices that wait on purpose, and within a memory limit what the banker's rule
refuses.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.tables import Floats, Ints, Stages, durations_of

SWAPS_A_SCHEDULE = 4
"""Swaps that take about as long as a list schedule."""

_TENURE = 8  # swaps for which two stay as they were put, at least; and up to twice that
_PAIRS = 4093  # remembered pairs of operations; those of one remainder share a place
_PATIENCE = 1.0  # swaps an operation without a shorter schedule; then some are made at random
_MOST_RANDOM = 6
_BACK = 0.5  # part of the times that this begins at the shortest schedule
_ROUNDING = 1e-9


class _Jobs(NamedTuple):
    """Times and devices of operations, numbered as :mod:`evenkeel.pipelines.search.dispatching.dispatch` does.

    ``change`` is what the device holds more after an operation.
    """

    durations: Floats
    device: Ints
    change: Floats
    stages: int
    block: int
    delay: float


class _Orders(NamedTuple):
    """What each device does, in order, from ``ops[base[device]]`` on; and the place of each operation there."""

    base: Ints
    ops: Ints
    place: Ints


class _Paths(NamedTuple):
    """Of each operation: when it starts, how long what follows takes at least, and what its device holds before."""

    heads: Floats
    tails: Floats
    held: Floats


@compiled
def reorder(
    stages: Stages, starts: Floats, limit: float, swaps: int, goal: float, generator: np.random.Generator
) -> tuple[Floats, float, int]:
    """The shortest schedule on the way of some swaps.

    Args:
        stages: What to order.
        starts: Of each operation, in a schedule to begin with.
        limit: Most activation a device may hold, infinite for no limit.
        swaps: How many to make.
        goal: Ends there.
        generator: For choices between equals and swaps at random.

    Returns:
        Start of each operation, when the last one ends (never later than to begin with), and how many swaps were made.
    """
    jobs = _jobs_of(stages)
    orders, num = _orders_of(stages, jobs, starts), starts.shape[0]
    paths, until = _Paths(np.empty(num), np.empty(num), np.empty(num)), np.zeros(_PAIRS, np.int64)
    makespan = _longest(jobs, orders, paths)
    best, shortest, made, stale = paths.heads.copy(), makespan, 0, 0
    ops, place = orders.ops.copy(), orders.place.copy()
    while made < swaps and goal < shortest < np.inf:
        at = -1
        if stale < _PATIENCE * num:
            at = _promising(jobs, orders, paths, limit, makespan, shortest, until, made, generator)
        if at >= 0:
            a, b = orders.ops[at], orders.ops[at + 1]
            until[(b * num + a) % _PAIRS] = made + _TENURE + int(generator.random() * _TENURE)
            makespan = _swapped(at, jobs, orders, paths)
            made, stale = made + 1, stale + 1
        else:
            if generator.random() < _BACK:
                orders.ops[:], orders.place[:] = ops, place
                makespan = _longest(jobs, orders, paths)
            for _ in range(1 + int(generator.random() * _MOST_RANDOM)):
                at = int(generator.random() * (num - 1))
                if _may_swap(at, jobs, orders, paths, limit):
                    makespan = _swapped(at, jobs, orders, paths)
                made += 1
            stale = 0
        if makespan < shortest:
            best[:], shortest, stale = paths.heads, makespan, 0
            ops[:], place[:] = orders.ops, orders.place
    return best, shortest, made


@compiled
def _jobs_of(stages: Stages) -> _Jobs:
    durations, num_stages = durations_of(stages), stages.device.shape[0]
    num, block = durations.shape[0], num_stages * stages.micro_batches
    device, change = np.empty(num, np.int64), np.zeros(num)
    for op in range(num):
        device[op] = stages.device[op % num_stages]
        if op < block:
            change[op] = stages.activation[op % num_stages]
        elif op >= num - block:
            change[op] = -stages.activation[op % num_stages]
    return _Jobs(durations, device, change, num_stages, block, stages.communication)


@compiled
def _orders_of(stages: Stages, jobs: _Jobs, starts: Floats) -> _Orders:
    """Each device's operations by their start, micro-batches of a stage in turn."""
    times, num = starts.copy(), starts.shape[0]
    for kind in range(0, num, jobs.block):
        for first in range(kind, kind + jobs.stages):
            rows = times[first : kind + jobs.block : jobs.stages]
            rows[:] = np.sort(rows)
    base = np.zeros(stages.num_devices + 1, np.int64)
    for op in range(num):
        base[jobs.device[op] + 1] += 1
    base = np.cumsum(base)
    fill, ops, place = base.copy(), np.empty(num, np.int64), np.empty(num, np.int64)
    by_end = np.argsort(times + jobs.durations, kind="mergesort")
    for op in by_end[np.argsort(times[by_end], kind="mergesort")]:
        at = fill[jobs.device[op]]
        ops[at], place[op] = op, at
        fill[jobs.device[op]] += 1
    return _Orders(base, ops, place)


@compiled
def _needed(op: int, jobs: _Jobs) -> int:
    """What an operation of the same micro-batch needs, or -1."""
    stage = op % jobs.stages
    if op < jobs.block:
        return op - 1 if stage else -1
    if op >= 2 * jobs.block or stage == jobs.stages - 1:
        return op - jobs.block
    return op + 1


@compiled
def _next(op: int, jobs: _Jobs) -> tuple[int, int]:
    """What of the same micro-batch needs an operation: the next pass, and its W; -1 for none."""
    stage, num = op % jobs.stages, jobs.durations.shape[0]
    if op < jobs.block:
        return op + (1 if stage < jobs.stages - 1 else jobs.block), -1
    if op >= 2 * jobs.block:
        return -1, -1
    return op - 1 if stage else -1, op + jobs.block if num > 2 * jobs.block else -1


@compiled
def _ahead(op: int, jobs: _Jobs, orders: _Orders) -> int:
    """What the device does before an operation, or -1."""
    at = orders.place[op]
    return orders.ops[at - 1] if at > orders.base[jobs.device[op]] else -1


@compiled
def _behind(op: int, jobs: _Jobs, orders: _Orders) -> int:
    """What the device does after an operation, or -1."""
    at = orders.place[op] + 1
    return orders.ops[at] if at < orders.base[jobs.device[op] + 1] else -1


@compiled
def _arrival(op: int, needed: int, jobs: _Jobs, paths: _Paths) -> float:
    """When what an operation needs has arrived at its device."""
    if needed < 0:
        return 0.0
    lag = jobs.delay if jobs.device[needed] != jobs.device[op] else 0.0
    return float(paths.heads[needed] + jobs.durations[needed] + lag)


@compiled
def _rest(op: int, after: int, jobs: _Jobs, paths: _Paths) -> float:
    """How long from the end of an operation on what needs it takes at least, with all that follows."""
    if after < 0:
        return 0.0
    lag = jobs.delay if jobs.device[after] != jobs.device[op] else 0.0
    return float(lag + jobs.durations[after] + paths.tails[after])


@compiled
def _longest(jobs: _Jobs, orders: _Orders, paths: _Paths) -> float:
    """Fills in the paths; the makespan, infinite if operations wait for each other in a circle."""
    num = jobs.durations.shape[0]
    missing, line, last, makespan = np.empty(num, np.int64), np.empty(num, np.int64), 0, 0.0
    for op in range(num):
        missing[op] = (_needed(op, jobs) >= 0) + (_ahead(op, jobs, orders) >= 0)
        if missing[op] == 0:
            line[last] = op
            last += 1
    first = 0
    while first < last:
        op = line[first]
        first += 1
        ahead, (after, weight) = _ahead(op, jobs, orders), _next(op, jobs)
        start = _arrival(op, _needed(op, jobs), jobs, paths)
        paths.heads[op] = max(start, _arrival(op, ahead, jobs, paths))
        makespan = max(makespan, paths.heads[op] + jobs.durations[op])
        for other in (_behind(op, jobs, orders), after, weight):
            if other >= 0:
                missing[other] -= 1
                if missing[other] == 0:
                    line[last] = other
                    last += 1
    if last < num:
        return np.inf
    for each in range(num - 1, -1, -1):
        op = line[each]
        after, weight = _next(op, jobs)
        tail = max(_rest(op, after, jobs, paths), _rest(op, weight, jobs, paths))
        paths.tails[op] = max(tail, _rest(op, _behind(op, jobs, orders), jobs, paths))
    for device in range(orders.base.shape[0] - 1):
        held = 0.0
        for op in orders.ops[orders.base[device] : orders.base[device + 1]]:
            paths.held[op] = held
            held += jobs.change[op]
    return makespan


@compiled
def _swapped(at: int, jobs: _Jobs, orders: _Orders, paths: _Paths) -> float:
    """Swaps what is at a place with what is behind it, unless that makes a circle; the makespan."""
    makespan = np.inf
    while makespan == np.inf:
        a, b = orders.ops[at], orders.ops[at + 1]
        orders.ops[at], orders.ops[at + 1], orders.place[a], orders.place[b] = b, a, at + 1, at
        makespan = _longest(jobs, orders, paths)
    return makespan


@compiled
def _may_swap(at: int, jobs: _Jobs, orders: _Orders, paths: _Paths, limit: float) -> bool:
    """Whether memory lets two neighbours swap, and they are of one device but not one after another by need or turn."""
    a, b = orders.ops[at], orders.ops[at + 1]
    if jobs.device[a] != jobs.device[b] or _needed(b, jobs) == a:
        return False
    if a // jobs.block == b // jobs.block and a % jobs.stages == b % jobs.stages:
        return False
    return bool(jobs.change[b] <= 0 or jobs.change[a] >= 0 or paths.held[a] + jobs.change[b] <= limit)


@compiled
def _promising(
    jobs: _Jobs,
    orders: _Orders,
    paths: _Paths,
    limit: float,
    makespan: float,
    shortest: float,
    until: Ints,
    made: int,
    generator: np.random.Generator,
) -> int:
    """The place of the two neighbours on a longest path whose swap promises most; -1 for none."""
    num, slack = jobs.durations.shape[0], _ROUNDING * makespan
    op, begin = -1, int(generator.random() * num)
    for each in range(num):
        other = (begin + each) % num
        if paths.heads[other] <= slack and jobs.durations[other] + paths.tails[other] >= makespan - slack:
            op = other
            break
    chosen, lowest, equals, oldest = -1, np.inf, 0, np.int64(1 << 60)
    while op >= 0:
        behind, (after, weight) = _behind(op, jobs, orders), _next(op, jobs)
        end, follow = paths.heads[op] + jobs.durations[op], -1
        is_tight = False
        # Where two ways are equally long chance decides, so that all are looked at in turn.
        for other in (weight, after, behind):
            if other < 0 or end + _rest(op, other, jobs, paths) < makespan - slack:
                continue
            if _arrival(other, op, jobs, paths) >= paths.heads[other] - slack:
                is_tight = other == behind
                follow = other if follow < 0 or generator.random() < 0.5 else follow
        if is_tight and _may_swap(orders.place[op], jobs, orders, paths, limit):
            value, forbidden = _estimate(op, behind, jobs, orders, paths), until[(op * num + behind) % _PAIRS]
            if forbidden <= made or value < shortest:
                equals = equals + 1 if value == lowest else 1
                if value < lowest or (value == lowest and generator.random() * equals < 1.0):
                    chosen, lowest = orders.place[op], value
            elif lowest == np.inf and forbidden < oldest:
                chosen, oldest = orders.place[op], forbidden
        op = follow
    return chosen


@compiled
def _estimate(a: int, b: int, jobs: _Jobs, orders: _Orders, paths: _Paths) -> float:
    """Length of the longest path through one of two neighbours once they are swapped."""
    free = _arrival(a, _ahead(a, jobs, orders), jobs, paths)
    head_b = max(free, _arrival(b, _needed(b, jobs), jobs, paths))
    head_a = max(head_b + jobs.durations[b], _arrival(a, _needed(a, jobs), jobs, paths))
    (after, weight), behind = _next(a, jobs), _behind(b, jobs, orders)
    tail_a = max(_rest(a, after, jobs, paths), _rest(a, weight, jobs, paths))
    tail_a = jobs.durations[a] + max(tail_a, _rest(a, behind, jobs, paths))
    after, weight = _next(b, jobs)
    tail_b = max(_rest(b, after, jobs, paths), _rest(b, weight, jobs, paths))
    return float(max(head_a + tail_a, head_b + jobs.durations[b] + max(tail_b, tail_a)))
