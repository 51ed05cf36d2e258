"""The fastest pipelines of any few devices, found by looking at all that may be good enough.

A *group* is how many devices of each kind a replica has, a *cell* how many one of its stages has; both are numbers
whose digits are these counts, so that what is left of a group is a difference. For each group, number of risks and
quota the pipeline that is done first is sought, stage by stage, with any cell and any blocks. What cannot be done in
time is not followed (:mod:`evenkeel.planning.pipelined.pipeline_bound`); blocks that have no stage yet run on
no more than all devices that are left, and each on no more than the fastest cell of them.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.pipelined.pipeline_bound import least_beside, pipeline_bound

_Shorts = npt.NDArray[np.int16]


class Devices(NamedTuple):
    """Which devices there are, and what they take.

    Attributes:
        seconds: [3, cells, lives, first, stop] of :func:`cell_table.cell_table`; one life where memory plays no part.
        cells: [cells] their numbers.
        cell_of: [groups] the cell that is a group; the number of cells where none is.
        is_part: [groups, cells] whether the devices of a cell are among those of a group.
        sizes: [groups] devices.
        rates: [groups] their speeds together.
        fastest: [groups] what the fastest cell of them does while one healthy device does 1, at most.
        healthy: [blocks + 1] seconds of a micro-batch of blocks 0 to b - 1 on one healthy device, both ways.
        handed_on: [blocks + 1] the same up to the gradient that is sent on.
        cell_risks: [cells] structural risks of such a stage.
        depth_risks: [stages + 1] those of a pipeline of so many stages.
        transfer_seconds: Of a transfer between stages.
        forward_part: The part of a stage's seconds that is forward, at most.
        backward_part: The part that is backward, at most.
        weight_part: The part that is backward after the gradient was sent on, at most.
        is_split: Whether the schedule has such a part; each stage holds as many micro-batches as there are stages then.
    """

    seconds: Floats
    cells: Integers
    cell_of: Integers
    is_part: npt.NDArray[np.bool_]
    sizes: Integers
    rates: Floats
    fastest: Floats
    healthy: Floats
    handed_on: Floats
    cell_risks: Integers
    depth_risks: Integers
    transfer_seconds: float
    forward_part: float
    backward_part: float
    weight_part: float
    is_split: bool


class Found(NamedTuple):
    """The fastest pipelines.

    Attributes:
        seconds: [groups, risks, quota], infinite where none is in time.
        stages: [groups, risks, quota, 2, stages] cells and ends of stages; -1 where there are no more.
    """

    seconds: Floats
    stages: _Shorts


@compiled
def fastest_replicas(
    devices: Devices, within: Floats, quotas: Integers, num_micro_batches: int, budget: int
) -> tuple[Found, int]:
    """The fastest pipeline of each group, and what is left of the budget: below 0 where it did not last.

    Args:
        devices: As above.
        within: [risks] seconds that a pipeline may take by how many risks it has; fewer for more.
        quotas: [2, groups] micro-batches that a replica has at least and at most to be of use.
        num_micro_batches: Of an iteration.
        budget: Stages to look at, at most.
    """
    num_lives, num_blocks = devices.seconds.shape[2], devices.seconds.shape[3]
    num_groups, num_risks, deepest = len(devices.sizes), len(within), len(devices.depth_risks) - 1
    found = Found(
        np.full((num_groups, num_risks, num_micro_batches + 1), math.inf),
        np.full((num_groups, num_risks, num_micro_batches + 1, 2, deepest), -1, np.int16),
    )
    for group in range(1, num_groups):
        for depth in range(1, min(deepest, num_blocks, devices.sizes[group]) + 1):
            for held in range(depth if num_lives == 1 else 1, depth + 1):
                # A short quota leaves memory free: pipelines that hold fewer than their depth are looked at apart.
                low = quotas[0, group] if num_lives == 1 else max(quotas[0, group], held)
                high = min(quotas[1, group], held) if held < depth else quotas[1, group]
                if low <= high and devices.depth_risks[depth] < len(within):
                    budget = _look(devices, within, group, depth, held, low, high, found, budget)
                    if budget < 0:
                        return found, budget
    return found, budget


@compiled
def _look(
    devices: Devices,
    within: Floats,
    group: int,
    depth: int,
    held: int,
    low: int,
    high: int,
    found: Found,
    budget: int,
) -> int:
    """Look at some pipelines of a group; what is left of the budget.

    Args:
        devices: Who there is.
        within: [risks] seconds that a pipeline may take.
        group: All of whose devices have a stage.
        depth: Number of stages.
        held: Micro-batches whose activations a stage holds at a time, at most.
        low: Quotas to ask about, from
        high: to.
        found: The fastest so far; is changed.
        budget: Stages to look at, at most.
    """
    num_lives, num_blocks, num_cells = devices.seconds.shape[2], devices.seconds.shape[3], len(devices.cells)
    last = depth - 1
    cells, stops, parts = np.full(depth, -1), np.full(depth, num_blocks), np.zeros((depth, 3))
    # Of the stages before each: what they leave, and their seconds and risks.
    rest, firsts, risks = np.full(depth, group), np.zeros(depth, np.int64), np.full(depth, devices.depth_risks[depth])
    ahead, back = np.zeros(depth), np.zeros(depth)
    s = 0
    while s >= 0 and budget >= 0:
        budget -= 1
        stops[s] += 1
        if stops[s] > num_blocks - (last - s):
            cells[s] = _next_cell(devices, cells[s] + 1, rest[s], last - s, len(within) - risks[s])
            if cells[s] == num_cells:
                s -= 1
                continue
            stops[s] = firsts[s] + 1 if s < last else num_blocks
        cell, first, stop = cells[s], firsts[s], stops[s]
        live = min(depth if devices.is_split else depth - s, held) - 1 if num_lives > 1 else 0
        for way in range(3):
            parts[s, way] = devices.seconds[way, cell, live, first, stop]
        own, risks_here = parts[s, 0] + parts[s, 1] + parts[s, 2], risks[s] + devices.cell_risks[cell]
        most, put_off = within[risks_here], min(low, s + 1) * parts[s, 2]
        if low * own > most or least_beside(parts[0, 2], ahead[s], back[s], put_off) + low * own > most:
            stops[s] = num_blocks  # with more blocks it takes longer, and more memory
            continue
        if s == last:
            told = found.stages[group, risks_here]
            _weigh(devices, parts, low, high, most, found.seconds[group, risks_here], told, cells, stops)
            continue
        left = rest[s] - devices.cells[cell]
        if devices.fastest[left] == 0.0:
            continue
        share = (devices.healthy[num_blocks] - devices.healthy[stop]) / devices.rates[left]
        handed_on = (devices.handed_on[num_blocks] - devices.handed_on[stop]) / devices.fastest[left]
        put_off = min(low, depth) * devices.weight_part * share
        least_later = least_beside(parts[0, 2], ahead[s] + parts[s, 0], back[s] + parts[s, 1], put_off) + low * share
        least = _least_seconds(devices, parts[: s + 1], last - s, handed_on, low, most)
        if max(least_later, least) <= most:
            risks[s + 1], rest[s + 1] = risks_here, left
            ahead[s + 1] = ahead[s] + parts[s, 0] + devices.transfer_seconds
            back[s + 1] = back[s] + parts[s, 1] + devices.transfer_seconds
            s += 1
            cells[s], stops[s], firsts[s] = -1, num_blocks, stop
    return budget


@compiled
def _weigh(
    devices: Devices,
    parts: Floats,
    low: int,
    high: int,
    within: float,
    seconds: Floats,
    stages: _Shorts,
    cells: Integers,
    stops: Integers,
) -> None:
    """Keep a pipeline for the quotas for which it is the fastest so far.

    Args:
        devices: What transfers take.
        parts: [stages, 3] of it.
        low: Quotas to ask about, from
        high: to.
        within: Seconds that it may take.
        seconds: [quota] of the fastest so far; is changed.
        stages: [quota, 2, stages] cells and ends of its stages; is changed.
        cells: [stages] of this one.
        stops: [stages] of this one.
    """
    depth = len(parts)
    borders = np.full(depth - 1, devices.transfer_seconds)
    for quota in range(low, high + 1):
        limit = min(within, seconds[quota])
        if _least_seconds(devices, parts, 0, 0.0, quota, limit) > limit:
            if limit == within:
                break
            continue
        taken = pipeline_makespan(parts, quota, borders)
        if taken <= within and taken < seconds[quota]:
            seconds[quota] = taken
            stages[quota] = -1
            for s in range(depth):
                stages[quota, 0, s], stages[quota, 1, s] = cells[s], stops[s]


@compiled
def _least_seconds(devices: Devices, parts: Floats, num_later: int, later: float, quota: int, limit: float) -> float:
    """:func:`pipeline_bound` of the first stages of a pipeline of these devices."""
    return pipeline_bound(
        parts, num_later, later, quota, devices.forward_part, devices.backward_part, devices.transfer_seconds, limit
    )[0]


@compiled
def _next_cell(devices: Devices, cell: int, rest: int, num_later: int, risks_left: int) -> int:
    """The first cell from one on that a stage may have; the number of cells when there is none.

    Args:
        devices: Who there is.
        cell: The first to look at.
        rest: Devices that are left for it and for the stages after it.
        num_later: How many those are; the last one has whoever is left.
        risks_left: It must have fewer.
    """
    num_cells = len(devices.cells)
    if not num_later:
        only = devices.cell_of[rest]
        return only if only >= cell and only < num_cells and devices.cell_risks[only] < risks_left else num_cells
    while cell < num_cells:
        is_part = devices.is_part[rest, cell] and devices.cell_risks[cell] < risks_left
        if is_part and devices.sizes[rest] - devices.sizes[devices.cells[cell]] >= num_later:
            break
        cell += 1
    return cell
