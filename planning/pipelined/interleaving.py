"""Interleaved 1F1B for the ranks of a replica: how many stages each, and where to cut.

Blocks are whole, so where to cut is searched: even parts first, then single blocks moved over a border while that is
faster (the order is that of :mod:`evenkeel.layouts.programs.interleaved`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from evenkeel.layouts.layout import Replica, Stage
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.planning.pipelined.virtual import ordered_makespan, programs_of
from evenkeel.planning.situation import Situation

_CHUNKS = (2, 3, 4)
_BUDGET = 60_000
_LESS = 1.0 - 1e-6
_Borders = tuple[int, ...]


class Interleaving:
    """Cuts of one situation's replicas; those that are alike are looked at once."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._left = _BUDGET
        self._known: dict[object, tuple[int, float, _Borders] | None] = {}

    def best(self, replica: Replica) -> Replica | None:
        """The fastest form of a replica with several stages a rank that fits its devices; None where there is none."""
        speeds = tuple([self._situation.throughputs[rank] for rank in replica.ranks])
        key = tuple([(s.stop_block, s.shares) for s in replica.stages]), speeds, replica.num_micro_batches
        if key not in self._known:
            self._known[key] = self._sought(replica)
        found = self._known[key]
        return None if found is None else _cut(replica, found[0], found[2])

    def _sought(self, replica: Replica) -> tuple[int, float, _Borders] | None:
        found: tuple[int, float, _Borders] | None = None
        num_cells, num_blocks = len(replica.stages), replica.stop_block
        if num_cells < 2 or not replica.num_micro_batches:
            return None
        for chunks in _CHUNKS:
            # Two computing passes and about two transfers, each at both ends.
            operations = 6 * num_cells * chunks * replica.num_micro_batches
            if num_cells * chunks > num_blocks or operations > self._left:
                break
            seconds, borders = self._climbed(replica, chunks, self._even(replica, chunks), operations)
            excess = self._situation.replica_excess_bytes(_cut(replica, chunks, borders))
            if not excess and (found is None or seconds < found[1] * _LESS):
                found = chunks, seconds, borders
        return found

    def _climbed(self, replica: Replica, chunks: int, borders: _Borders, operations: int) -> tuple[float, _Borders]:
        """Borders moved by single blocks as long as that is faster."""
        num_cells, quota = len(replica.stages), replica.num_micro_batches
        cells = tuple([tuple(range(cell, num_cells * chunks, num_cells)) for cell in range(num_cells)])
        programs = programs_of(interleaved_orders(num_cells, chunks, quota), cells, quota)
        transfer = self._situation.cost.workload.transfer_seconds

        def seconds_of(tried: _Borders) -> float:
            self._left -= operations
            parts = self._situation.parts(_stages(replica, tried), "zb-h1").tolist()
            return ordered_makespan(programs, cells, parts, transfer)

        seconds, better = seconds_of(borders), True
        while better:
            better = False
            for place in range(1, len(borders) - 1):
                for step in (-1, 1):
                    moved = borders[place] + step
                    if not borders[place - 1] < moved < borders[place + 1] or self._left < operations:
                        continue
                    tried = (*borders[:place], moved, *borders[place + 1 :])
                    found = seconds_of(tried)
                    if found < seconds * _LESS:
                        seconds, borders, better = found, tried, True
        return seconds, borders

    def _even(self, replica: Replica, chunks: int) -> _Borders:
        """Every cell gets the part of the work that its speed says, an equal part of that in each round."""
        cost, throughputs = self._situation.cost, self._situation.throughputs
        rates = []
        for stage in replica.stages:
            speeds = tuple([throughputs[rank] for rank in stage.ranks])
            rates.append(1.0 / float(cost.seconds_to_block(stage.shares, speeds)[-1]))
        work = cost.seconds_to_block((1,), (1.0,)).tolist()
        num_stages, borders, due = chunks * len(rates), [0], 0.0
        for s in range(num_stages - 1):
            due += rates[s % len(rates)] / sum(rates) / chunks * work[-1]
            nearest = bisect_left(work, due)
            if nearest and due - work[nearest - 1] < work[nearest] - due:
                nearest -= 1
            borders.append(min(max(nearest, borders[-1] + 1), len(work) - 1 - (num_stages - 1 - s)))
        return (*borders, len(work) - 1)


def _stages(replica: Replica, borders: Sequence[int]) -> tuple[Stage, ...]:
    """The replica's ranks in turns, between these borders."""
    stages = []
    for s, (first, stop) in enumerate(pairwise(borders)):
        like = replica.stages[s % len(replica.stages)]
        stages.append(Stage(first_block=first, stop_block=stop, ranks=like.ranks, shares=like.shares))
    return tuple(stages)


def _cut(replica: Replica, chunks: int, borders: Sequence[int]) -> Replica:
    """The replica with several stages a rank, between these borders."""
    quota = replica.num_micro_batches
    orders = interleaved_orders(len(replica.stages), chunks, quota)
    return Replica(stages=_stages(replica, borders), num_micro_batches=quota, orders=orders)
