"""The fastest layout of a small job, found by looking at all of them.

Levers follow rules and the climb takes single steps; what is two steps away neither finds. In jobs of few devices all
layouts can be looked at: :mod:`evenkeel.planning.exact.cell_table` says what devices side by side take,
:mod:`evenkeel.planning.exact.every_replica` which pipelines of any few devices are fastest, and
:mod:`evenkeel.planning.exact.group_deal` which replicas together. A layout that is known is what makes it
fast: whatever cannot be faster is not looked at any closer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD, live_activations
from evenkeel.planning.costs.risks import RISK_MARGIN, most_blocks, split_risks
from evenkeel.planning.exact.cell_table import cell_table
from evenkeel.planning.exact.every_replica import Devices, Found, fastest_replicas
from evenkeel.planning.exact.group_deal import best_deal
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.levers.balance.tensor_width import best_widths
from evenkeel.planning.levers.rebalance.grid import even_stages
from evenkeel.planning.repair import spread_quotas, with_standbys
from evenkeel.planning.situation import Situation

_MOST_GROUPS, _MOST_QUOTA, _MOST_RISKS = 256, 64, 5
_BUDGET, _BUDGET_OF_FEW, _FEW = 250_000, 1_500_000, 32
"""Stages that are looked at, at most: in jobs of many devices, and of up to so few. To look at all of these takes about
as long as the climb does where the budget ends before."""
_NEEDED = "1f1b"
"""Jobs that may not have this schedule are left to the climb."""
_ROUNDED, _SLACK = 1e-9, 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What came of it.

    Attributes:
        base: Who works where in the fastest layout that was found; None when none is faster than what is known.
        layout: That layout.
        is_all: Whether no layout under that schedule, with work for each of its replicas, is faster than this one or,
            without one, than what was known.
    """

    base: Layout | None
    layout: Layout | None
    is_all: bool


def look_at_all(situation: Situation, judged_seconds: float, crowding: float, schedule: str) -> Looked:
    """The layout that is judged fastest under a schedule, if it is below some seconds.

    Not looked at: jobs of many devices, micro-batches or kinds of devices, without 1F1B among their schedules, with
    slow links; layouts with five risks or more. Where jobs have a sequence mix, it is that of the full shape.

    Args:
        situation: The question, as the solver asks it.
        judged_seconds: Of the best layout that is known, with such a mix.
        crowding: How far devices may be filled beyond what :func:`risks.crowding` allows, where no memory limit is
            known.
        schedule: One that the job may have.
    """
    kinds = _kinds(situation)
    home = situation.home
    if (
        situation.links
        or _NEEDED not in (home.schedule, *home.schedules)
        or math.prod([len(ranks) + 1 for ranks in kinds]) > _MOST_GROUPS
        or home.num_micro_batches > _MOST_QUOTA
    ):
        return Looked(base=None, layout=None, is_all=False)
    return _Everything(situation, kinds, crowding, schedule).fastest(judged_seconds)


def _kinds(situation: Situation) -> list[list[int]]:
    """Live ranks by speed and domain, fast ones first."""
    kinds: dict[tuple[float, str], list[int]] = {}
    for rank in sorted(situation.throughputs):
        kinds.setdefault((-situation.throughputs[rank], str(situation.domain(rank))), []).append(rank)
    return [kinds[key] for key in sorted(kinds)]


class _Everything:
    """All layouts of one situation under a schedule."""

    def __init__(self, situation: Situation, kinds: list[list[int]], crowding: float, schedule: str) -> None:
        self._situation, self._kinds, self._schedule = situation, kinds, schedule
        self._budget = _BUDGET_OF_FEW if len(situation.throughputs) <= _FEW else _BUDGET
        cost, home, counts = situation.cost, situation.home, [len(ranks) for ranks in kinds]
        speeds = np.array([situation.throughputs[ranks[0]] for ranks in kinds])
        self._digits = np.indices([count + 1 for count in counts]).reshape(len(counts), -1).T.copy()
        self._cells = self._cells_of(kinds)
        sizes = self._digits.sum(axis=1)
        deepest = min(int(sizes[-1]), home.num_blocks)
        held, most_held = _held(situation, deepest, crowding)
        is_split = schedule in SPLIT_BACKWARD
        sharded = [cost.workload.exchange_seconds * (block.max_width > 1) for block in cost.model.blocks]
        seconds = np.vstack((cost.block_parts(schedule).T, sharded))
        table, self._most = cell_table(
            self._digits[self._cells],
            speeds,
            np.array([block.max_width for block in cost.model.blocks]),
            seconds,
            np.array([1.0, *[cost.slowdown(count) for count in range(1, int(sizes[-1]) + 1)]]),
            cost.main_width,
            held,
            most_held,
            situation.device_bytes is None,
        )
        self._num_lives = len(held)
        healthy = cost.seconds_to_block((1,), (1.0,))
        cell_of = np.full(len(sizes), len(self._cells))
        cell_of[self._cells] = np.arange(len(self._cells))
        self._contains: npt.NDArray[np.bool_] = np.all(self._digits[:, None] >= self._digits[None], axis=2)
        is_part = np.ascontiguousarray(self._contains[:, self._cells])
        depth = len(home.replicas[0].stages)
        merged = [max(0, depth - number) for number in range(deepest + 1)]
        self._devices = Devices(
            seconds=table,
            cells=self._cells,
            cell_of=cell_of,
            is_part=is_part,
            sizes=sizes,
            rates=self._digits @ speeds,
            fastest=np.where(is_part, _fastest(table, healthy), 0.0).max(axis=1),
            healthy=healthy,
            handed_on=np.array([0.0, *np.cumsum(seconds[0] + seconds[1])]),
            cell_risks=(sizes[self._cells] > situation.full_width).astype(np.int64),
            depth_risks=np.array(merged if situation.device_bytes is None else [0] * len(merged)),
            transfer_seconds=cost.workload.transfer_seconds,
            forward_part=cost.forward_parts[1],
            backward_part=1.0 - cost.forward_parts[0],
            weight_part=_largest_part(seconds[2], seconds[:3].sum(axis=0)),
            is_split=is_split,
        )

    def _cells_of(self, kinds: list[list[int]]) -> Integers:
        """Groups whose devices may work side by side."""
        places = [str(self._situation.domain(ranks[0])) for ranks in kinds]
        is_there = np.array([[place == other for other in dict.fromkeys(places)] for place in places])
        return np.flatnonzero(((self._digits @ is_there) > 0).sum(axis=1) == 1)

    def fastest(self, judged_seconds: float) -> Looked:
        """The layout that is judged fastest, if it is below some seconds."""
        cost, home = self._situation.cost, self._situation.home
        limit, total = judged_seconds / cost.correction, home.num_micro_batches
        # Gradients take at least what they do where all devices hold as much: which hold how much is not looked at.
        live, counts = len(self._situation.throughputs), range(1, len(home.replicas) + 1)
        gradients = [cost.gradients.at_least([max(1, live // count)] * count) for count in counts]
        fixed: Floats = cost.workload.fixed_seconds + np.array([0.0, *gradients])
        # Where everybody is well, whatever is not the full shape takes a risk for that.
        own = 1.0 + RISK_MARGIN * (self._situation.all_is_well + split_risks(self._situation, self._schedule))
        limit, margin = limit / own, RISK_MARGIN / own
        margins = 1.0 + margin * np.arange(_MOST_RISKS, dtype=np.float64)
        within: Floats = limit / margins - fixed[1:].min()
        found, budget = fastest_replicas(self._devices, within, self._quotas(float(within[0])), total, self._budget)
        _, deal = best_deal(found.seconds, self._contains, total, len(home.replicas), margin, fixed, limit)
        is_all = budget >= 0 and home.mix is None
        if not len(deal):
            return Looked(base=None, layout=None, is_all=is_all)
        base, layout = self._layouts(found, deal)
        return Looked(base=base, layout=layout, is_all=is_all and not cost.gradients.pair_seconds)

    def _quotas(self, within: float) -> Integers:
        """[2, groups] micro-batches of replicas of a job that is done in time: at least, at most."""
        home, devices = self._situation.home, self._devices
        whole, total, number = devices.healthy[-1], home.num_micro_batches, len(home.replicas)
        # No replica does more than all of its devices together, nor anything that one of them cannot do in time.
        # Only the weights' gradients of a micro-batch can be computed at a time in all of its stages.
        is_able = devices.fastest * within >= devices.handed_on[-1]
        most = np.where(is_able, np.floor(within * devices.rates / whole + _ROUNDED), 0.0)
        high = np.minimum(total, most)
        others = high if number > 1 else np.zeros(len(high))
        return np.stack([np.maximum(1.0, total - others[::-1]), high]).astype(np.int64)

    def _layouts(self, found: Found, deal: Integers) -> tuple[Layout, Layout]:
        """(Who works where, the same with widths, splits and quotas); ranks are where they have to fetch least."""
        situation, wanted = self._situation, []
        for d, (group, risks, quota) in enumerate(deal.tolist()):
            cells, stops = found.stages[group, risks, quota].tolist()
            depth = sum([cell >= 0 for cell in cells])
            for s, (cell, first, stop) in enumerate(zip(cells[:depth], [0, *stops], stops, strict=False)):
                held = max(1, live_activations(self._schedule, s, depth, quota)) if self._num_lives > 1 else 1
                wanted.append((d, cell, first, stop, int(self._most[cell, held - 1, first, stop])))
        ranks = self._ranks([(cell, first, stop) for _, cell, first, stop, _ in wanted])
        rows: list[list[Stage]] = [[] for _ in deal]
        for (d, _, first, stop, most), own in zip(wanted, ranks, strict=True):
            rows[d].append(self._stage(own, first, stop, most))
        order = sorted(range(len(rows)), key=lambda d: min([rank for stage in rows[d] for rank in stage.ranks]))
        even = spread_quotas([0] * len(order), situation.home.num_micro_batches)
        plain, tuned = [], []
        for d, quota in zip(order, even, strict=True):
            stages = even_stages([stage.ranks for stage in rows[d]], situation.home.num_blocks)
            plain.append(Replica(stages=stages, num_micro_batches=quota))
            tuned.append(Replica(stages=tuple(rows[d]), num_micro_batches=int(deal[d, 2])))
        home = replace(situation.home, schedule=self._schedule, standbys=())
        base, layout = (replace(home, replicas=tuple(each)) for each in (plain, tuned))
        live = situation.throughputs.keys()
        return with_standbys(base, live), with_standbys(layout, live)

    def _stage(self, ranks: Sequence[int], first: int, stop: int, most: int) -> Stage:
        """Blocks on ranks, fast ones first, cut as the table has it."""
        speeds = tuple([self._situation.throughputs[rank] for rank in ranks])
        widths = best_widths(max(self._situation.cost.main_width, len(ranks)), speeds, most)
        divisor = math.gcd(*widths)
        pairs = sorted(zip(ranks, widths, strict=True))
        return Stage(
            first_block=first,
            stop_block=stop,
            ranks=tuple([rank for rank, _ in pairs]),
            shares=tuple([width // divisor for _, width in pairs]),
        )

    def _ranks(self, wanted: Sequence[tuple[int, int, int]]) -> list[list[int]]:
        """Ranks of each (cell, first block, stop block), fast ones first: those that hold most of these blocks now."""
        layout, holders = self._situation.layout, self._situation.holders
        now = {
            rank: (stage.first_block, stage.stop_block)
            for replica in layout.replicas
            for stage in replica.stages
            for rank in holders.intersection(stage.ranks)
        }
        found: list[list[int]] = [[] for _ in wanted]
        for kind, ranks in enumerate(self._kinds):
            missing = [int(self._digits[self._cells[cell], kind]) for cell, _, _ in wanted]
            held = sorted(
                (-_overlap(now.get(rank, (0, 0)), (first, stop)), place, rank)
                for place, (_, first, stop) in enumerate(wanted)
                for rank in ranks
            )
            given: set[int] = set()
            for _, place, rank in held:
                if rank not in given and missing[place]:
                    given.add(rank)
                    missing[place] -= 1
                    found[place].append(rank)
        return found


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def _held(situation: Situation, deepest: int, crowding: float) -> tuple[Floats, float]:
    """([lives, blocks] what a block takes of all its shards, what one shard may hold): bytes, or blocks."""
    if situation.device_bytes is None:
        return np.ones((1, situation.home.num_blocks)), (most_blocks(situation) + crowding) * _SLACK
    blocks, scale = situation.cost.model.blocks, situation.largest_scale
    held = np.array([[b.held_bytes(live * scale) for b in blocks] for live in range(1, deepest + 1)], dtype=float)
    if held[-1].sum() <= situation.device_bytes:
        return held[:1], math.inf
    return held, situation.device_bytes


def _largest_part(some: Floats, whole: Floats) -> float:
    """The largest of the parts that some seconds are of others; of nothing they are none."""
    return float(np.divide(some, whole, out=np.zeros_like(some), where=whole > 0.0).max())


def _fastest(table: Floats, healthy: Floats) -> Floats:
    """[cells] what each does while one healthy device does 1, at most: with the block that suits it best."""
    blocks, costs = np.arange(table.shape[3]), np.diff(healthy)
    seconds = table[:, :, 0, blocks, blocks + 1].sum(axis=0)
    found: Floats = np.divide(costs, seconds, out=np.zeros_like(seconds), where=seconds > 0.0).max(axis=1)
    return found
