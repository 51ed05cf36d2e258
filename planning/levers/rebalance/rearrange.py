"""Lever: rearrange. One rank or one stage elsewhere: what levers that follow a rule do not come to, by trial.

The other structural levers each follow a rule (gather the loss, fill sick places, deal whole stages). This one has
none: it proposes every layout that differs from a given one by a rank that changes its stage, two ranks that change
places, or a stage that goes elsewhere, is joined to a neighbour or is halved. The solver climbs along these from its
fastest layout in jobs of few stages. Devices of one speed and domain, and replicas that are alike, are interchangeable
and tried once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.risks import RISK_MARGIN
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.levers.rebalance.grid import grid_of, with_grid
from evenkeel.planning.situation import Situation

_Cell = tuple[int, ...]
_Row = tuple[_Cell, ...]
_Grid = tuple[_Row, ...]
"""Ranks of each stage of each replica."""


class Rearrange(Lever):
    """One rank or one stage elsewhere."""

    name = "rearrange"
    asked = Asked.STEPS, 0

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """Layouts one step from ``base``, most promising first."""
        start = tuple(map(tuple, grid_of(base)))
        kinds = {rank: (speed, str(situation.domain(rank))) for rank, speed in situation.throughputs.items()}
        alike: dict[_Cell, object] = {}

        def signature(grid: _Grid) -> object:
            """The same for grids whose ranks and replicas are alike."""
            for row in grid:
                for cell in row:
                    if cell not in alike:
                        alike[cell] = tuple(sorted([kinds[rank] for rank in cell]))
            return frozenset(Counter([tuple([alike[cell] for cell in row]) for row in grid]).items())

        seen = {signature(start)}
        found: list[tuple[float, int, _Grid]] = []
        for grid in _Steps(situation, start, base.standbys).all():
            kind = signature(grid)
            if kind not in seen:
                seen.add(kind)
                found.append((_promised_seconds(situation, grid), len(found), grid))
        for _, _, grid in sorted(found):
            yield with_grid(base, grid, situation.throughputs.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Which ranks work with others."""
        mates = {rank: stage.ranks for replica in before.replicas for stage in replica.stages for rank in stage.ranks}
        moved = [
            rank
            for replica in after.replicas
            for stage in replica.stages
            for rank in stage.ranks
            if mates.get(rank) != stage.ranks
        ]
        return f"rank {', '.join(map(str, sorted(moved)))} in other stages" if moved else "stages in other places"


class _Steps:
    """Grids one step from another."""

    def __init__(self, situation: Situation, grid: _Grid, standbys: Sequence[int]) -> None:
        self._situation, self._grid, self._standbys = situation, grid, standbys
        # One stage more than usual holds what fewer cannot where memory is short.
        self._most = min(situation.home.num_blocks, 1 + max([len(r.stages) for r in situation.home.replicas]))
        self._places = [(d, s) for d, row in enumerate(grid) for s in range(len(row))]

    def all(self) -> Iterator[_Grid]:
        """Each of them, some more than once; all cells have ranks of one domain."""
        yield from self._new_stages()
        yield from self._rank_moves()
        yield from self._rank_exchanges()
        yield from self._stage_moves()

    def _new_stages(self) -> Iterator[_Grid]:
        """One standby, or as many of a domain as a stage has, as a further stage at an end of a pipeline."""
        width = self._situation.full_width
        for first in self._first_of_kind(self._standbys):
            where = self._situation.domain(first)
            near = [rank for rank in self._standbys if self._situation.domain(rank) == where]
            near.sort(key=lambda rank: (-self._situation.throughputs[rank], rank))
            for cell in dict.fromkeys(((first,), tuple(near[:width]))):
                for d, row in enumerate(self._grid):
                    if len(row) < self._most:
                        yield self._rows({d: (cell, *row)})
                        yield self._rows({d: (*row, cell)})

    def _rank_moves(self) -> Iterator[_Grid]:
        for rank in self._first_of_kind(self._standbys):
            for place in self._places:
                if self._is_near(rank, place):
                    yield self._with({place: (*self._cell(place), rank)})
        for source in self._places:
            for rank in self._first_of_kind(self._cell(source)):
                rest = tuple([other for other in self._cell(source) if other != rank])
                for place in self._places:
                    if place != source and self._is_near(rank, place):
                        yield self._with({source: rest, place: (*self._cell(place), rank)})

    def _rank_exchanges(self) -> Iterator[_Grid]:
        speeds = self._situation.throughputs
        for number, one in enumerate(self._places):
            for rank in self._first_of_kind(self._cell(one)):
                for other in self._places[number + 1 :]:
                    for mate in self._first_of_kind(self._cell(other)):
                        if speeds[rank] != speeds[mate] and self._is_near(rank, other) and self._is_near(mate, one):
                            yield self._with(
                                {
                                    one: _instead(self._cell(one), rank, mate),
                                    other: _instead(self._cell(other), mate, rank),
                                }
                            )
                for mate in self._first_of_kind(self._standbys):
                    if speeds[rank] < speeds[mate] and self._is_near(mate, one):
                        yield self._with({one: _instead(self._cell(one), rank, mate)})

    def _stage_moves(self) -> Iterator[_Grid]:
        for number, (d, s) in enumerate(self._places):
            row, cell = self._grid[d], self._grid[d][s]
            for e, other in self._places[number + 1 :]:
                yield self._with({(d, s): self._grid[e][other], (e, other): cell})
            for e, target in enumerate(self._grid):
                if e != d and len(target) < self._most:
                    yield self._rows({d: (*row[:s], *row[s + 1 :]), e: (*target, cell)})
            if s and self._situation.domain(row[s - 1][0]) == self._situation.domain(cell[0]):
                yield self._rows({d: (*row[: s - 1], (*row[s - 1], *cell), *row[s + 1 :])})
            if len(cell) > 1 and len(row) < self._most:
                half = (len(cell) + 1) // 2
                yield self._rows({d: (*row[:s], cell[:half], cell[half:], *row[s + 1 :])})

    def _cell(self, place: tuple[int, int]) -> _Cell:
        return self._grid[place[0]][place[1]]

    def _is_near(self, rank: int, place: tuple[int, int]) -> bool:
        domain = self._situation.domain
        return domain(rank) == domain(self._cell(place)[0])

    def _first_of_kind(self, ranks: Sequence[int]) -> list[int]:
        """Of ranks that are alike the first."""
        situation = self._situation
        kinds = {(situation.throughputs[rank], situation.domain(rank)): rank for rank in reversed(ranks)}
        return sorted(kinds.values())

    def _with(self, cells: dict[tuple[int, int], _Cell]) -> _Grid:
        """The grid with other cells; one without ranks is left out."""
        rows: dict[int, _Row] = {}
        for d in {d for d, _ in cells}:
            row = tuple([cells.get((d, s), cell) for s, cell in enumerate(self._grid[d])])
            rows[d] = tuple([cell for cell in row if cell])
        return self._rows(rows)

    def _rows(self, rows: dict[int, _Row]) -> _Grid:
        """The grid with other replicas."""
        return tuple([rows.get(d, row) for d, row in enumerate(self._grid)])


def _instead(cell: _Cell, rank: int, other: int) -> _Cell:
    return tuple([other if each == rank else each for each in cell])


def _promised_seconds(situation: Situation, grid: _Grid) -> float:
    """Judged seconds of an iteration, about: as if blocks, heads and micro-batches could be divided at will.

    With equal stages a pipeline of p stages takes q + p - 1 times what one of them does for a micro-batch.
    """
    cost, home, speeds = situation.cost, situation.home, situation.throughputs
    full_width, num_stages = situation.full_width, len(home.replicas[0].stages)
    risks = max(0, len(home.replicas) - sum(map(bool, grid)))
    pace = fill = 0.0
    for row in filter(None, grid):
        pace += sum([sum([speeds[rank] for rank in cell]) / cost.slowdown(len(cell)) for cell in row])
        fill += len(row) - 1
        risks += sum([len(cell) > full_width for cell in row])
        risks += max(0, num_stages - len(row)) if situation.device_bytes is None else 0
    exchanged = cost.gradients.at_least([sum(map(len, row)) for row in grid if row])
    seconds = (home.num_micro_batches + fill) * cost.healthy_seconds(0, home.num_blocks) / pace
    return (1.0 + RISK_MARGIN * risks) * cost.total(seconds, exchanged)
