"""Lever: move ranks. Gather the loss in few replicas, and put what is left of those together anew.

Layers are whole: a replica that misses one device of 64 is held up by one stage nearly as much as a replica that misses
eight. So the sick places of all but a few replicas are filled with healthy ranks of these few, the donors; slow ranks
change places with them. What is left of a donor's broken stages forms stages of full width again, so a donor has fewer
stages than the full shape: living stages are merged. All of it starts from the full shape, as far as its ranks live.

Where the situation knows domains and the full shape keeps its tensor groups within them, so does this: a sick place is
filled from the same domain, and where that has nobody the whole stage changes places with a whole one of a donor.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.repair import with_replicas
from evenkeel.planning.situation import Situation

_HEALTHY = 0.97
_DONOR_PARTS = (0.6, 0.4, 0.25)
"""Parts of the donors' devices that the whole loss may be. The fewest donors that have enough healthy ranks are best:
in 40 random states of 256 devices two were never more than a thousandth ahead of one."""

_FEW_STAGES = 15
"""Up to so many stages all numbers of donors are proposed, also all sick replicas: then nobody is healed."""

_Cells = list[list[int]]
"""Ranks of each stage of one replica."""

_Source = tuple[list[int], int]
"""A stage of a donor and a place in it."""


def _loss(throughputs: Iterable[float]) -> float:
    return sum([1.0 - p for p in throughputs if p < 1.0])


def even_stages(cells: Sequence[Sequence[int]], num_blocks: int) -> tuple[Stage, ...]:
    """Stages of these ranks with blocks in proportion to their number; the layer split does better later."""
    weight = [len(cell) for cell in cells]
    borders, done = [0], 0
    for s, each in enumerate(weight):
        done += each
        stop = round(num_blocks * done / sum(weight))
        borders.append(min(max(stop, borders[-1] + 1), num_blocks - (len(cells) - s - 1)))
    return tuple(
        Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=tuple(cell), shares=(1,) * len(cell))
        for s, cell in enumerate(cells)
    )


class _Moves:
    """The full shape while ranks are moved about.

    Args:
        situation: Who lives, and how fast.
        donors: Replicas that take all of the loss, the worst first.
    """

    def __init__(self, situation: Situation, donors: Sequence[int]) -> None:
        self._situation, self._speeds = situation, situation.throughputs
        self._home, self._donors = situation.home, donors
        self._cells = {d: [list(stage.ranks) for stage in self._home.replicas[d].stages] for d in donors}
        self._healed: dict[int, _Cells] = {}

    def heal(self, sick: Sequence[int]) -> bool:
        """Fill the sick places of other replicas from the donors; False when the donors have too few healthy ranks."""
        spare: dict[int | str, deque[_Source]] = {}
        for cell, place in self._spare():
            spare.setdefault(self._situation.domain(cell[place]), deque()).append((cell, place))
        taken: set[int] = set()
        for d in sick:
            cells = [list(stage.ranks) for stage in self._home.replicas[d].stages]
            for cell in cells:
                places = [t for t, rank in enumerate(cell) if not self._is_healthy(rank)]
                if not places:
                    continue
                where = self._situation.domain(cell[0])
                sources = spare.get(where, deque())
                if taken:
                    sources = spare[where] = deque([source for source in sources if id(source[0]) not in taken])
                if len(sources) < len(places):
                    if not (self._situation.keeps_domains and self._exchange(cell, taken)):
                        return False
                    continue
                for t in places:
                    donor_cell, place = sources.popleft()
                    cell[t], donor_cell[place] = donor_cell[place], cell[t]
            self._healed[d] = cells
        return True

    def _is_healthy(self, rank: int) -> bool:
        return self._speeds.get(rank, 0.0) >= _HEALTHY

    def _exchange(self, cell: list[int], taken: set[int]) -> bool:
        """Let a sick stage change places with a whole stage of a donor; False when there is none."""
        for d in self._donors:
            for other in self._cells[d]:
                if id(other) not in taken and len(other) == len(cell) and all(map(self._is_healthy, other)):
                    cell[:], other[:] = other, list(cell)
                    taken.add(id(other))
                    return True
        return False

    def _spare(self) -> Iterator[tuple[list[int], int]]:
        """Places of healthy ranks in the donors, those of the most broken stages first."""
        cells = [cell for d in self._donors for cell in self._cells[d]]
        cells.sort(key=lambda cell: -_loss(self._speeds.get(rank, 0.0) for rank in cell))
        for cell in cells:
            for place in range(len(cell)):
                if self._is_healthy(cell[place]):
                    yield cell, place

    def layouts(self) -> Iterator[Layout]:
        """What comes of it: broken stages of donors as they are, or put together to stages of full width."""
        for together in (True, False):
            layout = self._layout(together)
            if layout is not None:
                yield layout

    def _layout(self, together: bool) -> Layout | None:
        replicas = []
        for d, replica in enumerate(self._home.replicas):
            if d in self._healed:
                stages = tuple(
                    replace(stage, ranks=tuple(cell))
                    for stage, cell in zip(replica.stages, self._healed[d], strict=True)
                )
            elif d in self._cells:
                cells = [[rank for rank in cell if rank in self._speeds] for cell in self._cells[d]]
                cells = self._together(cells) if together else [cell for cell in cells if cell]
                if not cells:
                    return None
                stages = even_stages(cells, self._home.num_blocks)
            else:
                replicas.append(replica)
                continue
            replicas.append(Replica(stages=stages, num_micro_batches=replica.num_micro_batches))
        return with_replicas(self._home, replicas, self._speeds.keys())

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
