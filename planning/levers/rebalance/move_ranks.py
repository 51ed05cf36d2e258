"""Lever: move ranks. Gather the loss in few replicas, and put what is left of those together anew.

Layers are whole: a replica that misses one device of 64 is held up by one stage nearly as much as a replica that misses
eight. So the sick places of all but a few replicas are filled with healthy ranks of these few, the donors; slow ranks
change places with them. What is left of a donor's broken stages forms stages of full width again, so a donor has fewer
stages than the full shape: living stages are merged. All of it starts from the full shape, as far as its ranks live.

Where the situation knows domains and the full shape keeps its tensor groups within them, so does this: a sick place is
filled from the same domain, and where that has nobody the whole stage changes places with a whole one of a donor.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.levers.rebalance.grid import grid_of, with_grid
from evenkeel.planning.situation import Situation

_HEALTHY = 0.97
_DONOR_PARTS = (0.6, 0.4, 0.25)
"""Parts of the donors' devices that the whole loss may be. The fewest donors that have enough healthy ranks are best:
in 40 random states of 256 devices two were never more than a thousandth ahead of one."""

_FEW_STAGES = 15
"""Up to so many stages all numbers of donors are proposed, also all sick replicas: then nobody is healed."""

_Cells = list[list[int]]
"""Ranks of each stage of one replica."""


def _loss(throughputs: Iterable[float]) -> float:
    return sum([1.0 - p for p in throughputs if p < 1.0])


class _Moves:
    """The full shape while ranks are moved about.

    Args:
        situation: Who lives, and how fast.
        donors: Replicas that take all of the loss, the worst first.
    """

    def __init__(self, situation: Situation, donors: Sequence[int]) -> None:
        self._situation, self._speeds = situation, situation.throughputs
        self._home, self._donors = situation.home, donors
        self._cells = {d: self._cells_of(d) for d in donors}
        broken_first = [cell for d in donors for cell in self._cells[d]]
        broken_first.sort(key=lambda cell: -_loss([self._speeds.get(rank, 0.0) for rank in cell]))
        self._broken_first, self._healed = broken_first, dict[int, _Cells]()

    def _cells_of(self, replica: int) -> _Cells:
        return [list(stage.ranks) for stage in self._home.replicas[replica].stages]

    def heal(self, sick: Sequence[int]) -> bool:
        """Fill the sick places of other replicas from the donors; False when the donors have too few healthy ranks."""
        for d in sick:
            self._healed[d] = self._cells_of(d)
            for cell in self._healed[d]:
                if not (self._fill(cell) or (self._situation.keeps_domains and self._exchange(cell))):
                    return False
        return True

    def _is_healthy(self, rank: int) -> bool:
        return self._speeds.get(rank, 0.0) >= _HEALTHY

    def _fill(self, cell: list[int]) -> bool:
        """Let the sick ranks of a stage change places with healthy ones of its domain; False when these are too few."""
        domain, is_healthy = self._situation.domain, self._is_healthy
        where, places = domain(cell[0]), [t for t, rank in enumerate(cell) if not is_healthy(rank)]
        sources = [
            (other, t)
            for other in (self._broken_first if places else ())
            for t, rank in enumerate(other)
            if is_healthy(rank) and domain(rank) == where
        ]
        if len(sources) < len(places):
            return False
        for place, (other, t) in zip(places, sources, strict=False):
            cell[place], other[t] = other[t], cell[place]
        return True

    def _exchange(self, cell: list[int]) -> bool:
        """Let a sick stage change places with a whole stage of a donor; False when there is none."""
        for d in self._donors:
            for other in self._cells[d]:
                if len(other) == len(cell) and all(map(self._is_healthy, other)):
                    cell[:], other[:] = other, list(cell)
                    return True
        return False

    def layouts(self) -> Iterator[Layout]:
        """What comes of it: broken stages of donors as they are, or put together to stages of full width."""
        for together in (True, False):
            layout = self._layout(together)
            if layout is not None:
                yield layout

    def _layout(self, together: bool) -> Layout | None:
        """With broken stages of donors put together, or as they are; None where nobody is left in a donor."""
        grid: list[Sequence[Sequence[int]]] = [*grid_of(self._home)]
        for d, cells in self._healed.items():
            grid[d] = cells
        for d, cells in self._cells.items():
            alive = [[rank for rank in cell if rank in self._speeds] for cell in cells]
            grid[d] = self._together(alive) if together else alive
            if not any(grid[d]):
                return None
        return with_grid(self._home, grid, self._speeds.keys(), evened=self._cells)

    def _together(self, cells: _Cells) -> _Cells:
        """Stages that miss somebody put together to stages of full width, fastest first; a rest becomes standbys."""
        width = self._situation.full_width
        whole = [cell for cell in cells if len(cell) >= width]
        places: dict[int | str, list[int]] = {}
        for rank in sorted(
            (rank for cell in cells if len(cell) < width for rank in cell), key=lambda rank: (-self._speeds[rank], rank)
        ):
            places.setdefault(self._situation.domain(rank), []).append(rank)
        groups = [loose[start : start + width] for loose in places.values() for start in range(0, len(loose), width)]
        return [*whole, *(group for group in groups if len(group) == width)]


class MoveRanks(Lever):
    """Ranks moved between replicas, so that the loss is in few of them."""

    name = "move_ranks"
    asked = Asked.SHAPE, 1
    leads_on = False

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """The full shape with its loss gathered in one replica, or in a few."""
        home, speeds = situation.home, situation.throughputs
        losses = [_loss([speeds.get(rank, 0.0) for rank in replica.ranks]) for replica in home.replicas]
        sick = sorted((d for d, loss in enumerate(losses) if loss > 1.0 - _HEALTHY), key=lambda d: (-losses[d], d))
        size, num_stages = len(home.replicas[0].ranks), sum([len(replica.stages) for replica in home.replicas])
        counts = {max(1, math.ceil(sum(losses) / (part * size))) for part in _DONOR_PARTS}
        if situation.keeps_domains:
            broken = sum(
                1
                for d in sick
                for stage in home.replicas[d].stages
                if min([speeds.get(rank, 0.0) for rank in stage.ranks]) < _HEALTHY
            )
            # Whole stages change places, so the donors must have a stage for each broken one.
            counts.add(max(1, math.ceil(broken / len(home.replicas[0].stages))))
        few = [count for count in sorted(counts) if count < len(sick)]
        for count in (*few, len(sick)) if num_stages <= _FEW_STAGES else few:
            moves = _Moves(situation, sick[:count])
            if moves.heal(sick[count:]):
                yield from moves.layouts()
                if num_stages > _FEW_STAGES:
                    return

    def describe(self, before: Layout, after: Layout) -> str:
        """How many ranks work in another replica, and replicas with another number of stages."""
        home = {rank: d for d, replica in enumerate(before.replicas) for rank in replica.ranks}
        moved = sum(1 for d, replica in enumerate(after.replicas) for rank in replica.ranks if home.get(rank, d) != d)
        lines = [f"{moved} ranks in other replicas"] if moved else []
        for d, (was, becomes) in enumerate(zip(before.replicas, after.replicas, strict=False)):
            if len(was.stages) != len(becomes.stages):
                lines.append(f"replica {d} has {len(becomes.stages)} stages (had {len(was.stages)})")
        return "; ".join(lines)
