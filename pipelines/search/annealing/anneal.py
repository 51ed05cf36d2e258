"""Annealing over single layers' devices, each change judged by a soft maximum of the devices' ends.

Of some random changes the one is looked at that promises most by work and by what each device idles in the standing
schedule. A first pass in the order that stands ends most changes early; what is nearly good enough gets an order of its
own by a pass back and another one forth.
"""

from math import log
from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.annealing.express import SPELLS, Judge, express_pass
from evenkeel.pipelines.search.annealing.lines import by_layer, rows_of
from evenkeel.pipelines.search.annealing.pushed_right import idle_to_come, latest_starts
from evenkeel.pipelines.search.annealing.soft_maximum import excess, soft_end, total_of
from evenkeel.pipelines.search.climbing.changes import below
from evenkeel.pipelines.search.starts.balance import window_loads
from evenkeel.pipelines.search.starts.deals import Deal, Layers, change, stages_dealt
from evenkeel.pipelines.search.tables import Floats, Ints, Table, stages_of

_MOST_DRAWS = 200
_CHANGE = 400  # operations that choosing a change takes as long as
_LOOKED_AT = np.array([12, 12, 12, 2, 2, 2, 1, 1, 1, 1])


class Terms(NamedTuple):
    """How an annealing accepts.

    Attributes:
        base: See :class:`evenkeel.pipelines.search.annealing.express.Judge`.
        cap: No device may be certain to end later.
        second: How far above what is accepted, as a factor of what is above the base, a change gets its own order.
        share: See :class:`evenkeel.pipelines.search.annealing.express.Judge`.
        is_express: Whether the first micro-batch's way is kept free.
        locked: Devices whose amount of work is to stay as it is.
        goal: A makespan that ends it.
    """

    base: float
    cap: float
    second: float
    share: float
    is_express: bool
    locked: Ints
    goal: float


class Dealt(NamedTuple):
    """A deal with an order.

    Attributes:
        deal: The device of each layer.
        wanted: Latest start of each pass of each layer, were it a stage, [kinds * layers, micro-batches].
        ends: Of each device.
        total: Of their excess.
        makespan: The last end.
    """

    deal: Deal
    wanted: Floats
    ends: Floats
    total: float
    makespan: float


@compiled
def standing_deal(table: Table, deal: Deal, wanted: Floats, terms: Terms, rounds: int) -> Dealt:
    """A deal with the best order of some passes forth and back, to begin with."""
    sizes, devices = stages_dealt(deal)
    stages, rows = stages_of(table, sizes, devices), rows_of(sizes, table.sums.shape[0])
    judge = Judge(terms.base, np.inf, np.empty((0, 0)), np.inf, 0.0)
    best = Dealt(deal, wanted, np.zeros(stages.num_devices), np.inf, np.inf)
    for turn in range(rounds):
        starts = np.empty(wanted.shape)
        passed = express_pass(stages, rows, wanted, terms.is_express, False, judge, starts)
        if passed.total < best.total:
            latest = by_layer(table, sizes, stages, wanted) if turn else wanted
            best = Dealt(deal, latest, passed.ends, passed.total, passed.makespan)
        wanted = latest_starts(stages, rows, starts)
    return best


@compiled
def anneal(
    table: Table,
    layers: Layers,
    now: Dealt,
    best: Dealt,
    shortest: Dealt,
    terms: Terms,
    heat: float,
    most: int,
    generator: np.random.Generator,
) -> tuple[Dealt, Dealt, Dealt, int]:
    """Anneals on.

    Args:
        table: The case; without a limit of memory.
        layers: Of the case.
        now: Where to begin.
        best: The best by the soft maximum so far.
        shortest: The shortest so far.
        terms: How to judge.
        heat: Temperature, in units of time.
        most: Ends after so many operations.
        generator: Source of the changes.

    Returns:
        Where it stands, the best, the shortest, and how many operations that took.
    """
    num_devices, kinds = table.speeds.shape[0], table.sums.shape[0]
    per_list = kinds * table.micro_batches
    spell = now.makespan * 1.2 / SPELLS
    sizes, devices = stages_dealt(now.deal)
    stages, rows = stages_of(table, sizes, devices), rows_of(sizes, kinds)
    starts, other_starts = np.empty(now.wanted.shape), np.empty(now.wanted.shape)
    certain = Judge(terms.base, np.inf, np.empty((0, 0)), spell, 0.0)
    express_pass(stages, rows, now.wanted, terms.is_express, False, certain, starts)
    idle = idle_to_come(stages, rows, starts, now.ends, spell)
    loads = _loads(layers, now.deal.devices, table)
    ops = 0
    trial = Deal(now.deal.devices.copy(), now.deal.cuts.copy())
    while ops < most:
        accepted = soft_end(now.total, num_devices, terms.base) - heat * log(generator.random() + 1e-12)
        accepted_total = total_of(accepted, num_devices, terms.base)
        ops += _CHANGE
        if not _chosen(table, layers, now, loads, accepted_total, terms, trial, generator):
            continue
        sizes, devices = stages_dealt(trial)
        stages, rows = stages_of(table, sizes, devices), rows_of(sizes, kinds)
        worst = total_of(terms.base + (accepted - terms.base) * terms.second, num_devices, terms.base)
        judge = Judge(terms.base, worst, idle, spell, terms.share)
        found = express_pass(stages, rows, now.wanted, terms.is_express, False, judge, starts)
        ops += found.begun
        if found.makespan == np.inf:
            continue
        wanted, used = now.wanted, starts
        latest = latest_starts(stages, rows, starts)
        ops += per_list * sizes.shape[0]
        judge = Judge(terms.base, min(accepted_total, found.total), idle, spell, 0.0)
        again = express_pass(stages, rows, latest, terms.is_express, False, judge, other_starts)
        ops += again.begun
        if again.makespan < np.inf and again.total < found.total:
            found, wanted, used = again, latest, other_starts
        if found.total > accepted_total:
            continue
        idle = idle_to_come(stages, rows, used, found.ends, spell)
        deal = Deal(trial.devices.copy(), trial.cuts.copy())
        kept = np.empty(wanted.shape)
        kept[:] = wanted
        now = Dealt(deal, by_layer(table, sizes, stages, kept), found.ends, found.total, found.makespan)
        loads = _loads(layers, deal.devices, table)
        if now.total < best.total:
            best = now
        if now.makespan < shortest.makespan:
            shortest = now
            if now.makespan <= terms.goal:
                break
    return now, best, shortest, ops


@compiled
def within(
    table: Table, layers: Layers, deal: Deal, cap: float, tries: int, locked: Ints, generator: np.random.Generator
) -> Deal:
    """A deal that is changed until no device is certain to end later than the cap, if so many changes lead there."""
    over, loads = _over(table, deal, cap), _loads(layers, deal.devices, table)
    for _ in range(tries):
        if over <= 0.0:
            break
        other = Deal(deal.devices.copy(), deal.cuts.copy())
        change(other, layers.kinds, table.speeds.shape[0], generator)
        found, new = _over(table, other, cap), _loads(layers, other.devices, table)
        for device in locked:
            if abs(new[device] - loads[device]) > 1e-9 * loads[device]:
                found = np.inf
        if found <= over:
            deal, over = other, found
    return deal


@compiled
def _over(table: Table, deal: Deal, cap: float) -> float:
    sizes, devices = stages_dealt(deal)
    over = 0.0
    for load in window_loads(table, sizes, devices):
        over += max(0.0, load - cap)
    return over


@compiled
def _loads(layers: Layers, devices: Ints, table: Table) -> Floats:
    loads = np.zeros(table.speeds.shape[0])
    for layer in range(devices.shape[0]):
        loads[devices[layer]] += layers.works[layer] / table.speeds[devices[layer]]
    return loads


@compiled
def _chosen(
    table: Table,
    layers: Layers,
    now: Dealt,
    loads: Floats,
    most: float,
    terms: Terms,
    trial: Deal,
    generator: np.random.Generator,
) -> bool:
    """Makes ``trial`` the most promising of a few random changes; false if none may be accepted."""
    num_devices, num, base = loads.shape[0], now.deal.devices.shape[0], terms.base
    wanted, seen, lowest, is_found = _LOOKED_AT[below(generator, 10)], 0, np.inf, False
    deal = Deal(np.empty(num, np.int64), np.empty(num, np.int64))
    work = np.empty(num_devices)
    for _ in range(_MOST_DRAWS):
        deal.devices[:], deal.cuts[:] = now.deal.devices, now.deal.cuts
        draw = generator.random()
        for _ in range(3 if draw < 0.15 else 2 if draw < 0.45 else 1):
            change(deal, layers.kinds, num_devices, generator)
        is_same = True
        for device in range(num_devices):
            work[device] = loads[device]
        for layer in range(num):
            old, new = now.deal.devices[layer], deal.devices[layer]
            if old != new:
                is_same = False
                work[old] -= layers.works[layer] / table.speeds[old]
                work[new] += layers.works[layer] / table.speeds[new]
            elif deal.cuts[layer] != now.deal.cuts[layer]:
                is_same = False
        if is_same:
            continue
        certain = expected = 0.0
        is_over = False
        for device in range(num_devices):
            is_over = is_over or work[device] > terms.cap
            certain += excess(work[device], base)
            expected += excess(work[device] + now.ends[device] - loads[device], base)
        for device in terms.locked:
            is_over = is_over or abs(work[device] - loads[device]) > 1e-9 * loads[device]
        if is_over or certain > most:
            continue
        if expected >= lowest and seen + 1 < wanted:
            seen += 1
            continue
        sizes, devices = stages_dealt(deal)
        if window_loads(table, sizes, devices).max() > terms.cap:
            continue
        seen += 1
        if expected < lowest:
            lowest, is_found = expected, True
            trial.devices[:], trial.cuts[:] = deal.devices, deal.cuts
        if seen >= wanted:
            break
    return is_found
