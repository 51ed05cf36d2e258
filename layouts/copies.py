"""Who keeps a copy of whose slices, and what a job cannot survive: it follows from layout, nodes and budget alone.

A failure unit is a rank, and a node where the job has several. Hosts of a slice are the ranks that train it and those
that keep a copy. The rule: no two units together have all hosts of a slice, unless the two are the whole job; first no
single unit. So slices have hosts on three nodes, or two on each of two, or three on one. Copies of every step in the
memory of other nodes are Gemini's (Wang et al., SOSP 2023); hosts that no two failures share are ours.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.layouts.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """``keeper`` keeps a copy of everything that ``owner`` holds."""

    owner: int
    keeper: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What fails together: a rank, or all ranks of a node."""

    name: str
    ranks: frozenset[int]


def place_copies(
    model: ModelSpec, layout: Layout, nodes: Mapping[int, str], budget_bytes: float = float("inf")
) -> tuple[Placement, ...]:
    """Copies so that no two failure units have all hosts of a slice, ascending by owner; none where none are needed.

    Greedy, slice by slice: the keeper that the most of the slice's open pairs of units do not have, then who keeps
    least, then the next one in the order of ranks; of a slice's holders it copies one on its own node where there is
    one, and of several the one that sends least. What the budget leaves open is :func:`losses_not_survived`.

    Args:
        model: What blocks weigh.
        layout: Layout.
        nodes: Node of each rank of the layout.
        budget_bytes: How much of others a rank may keep.
    """
    return _Greedy(model, layout, nodes, budget_bytes).placements


def losses_not_survived(
    layout: Layout, nodes: Mapping[int, str], placements: Sequence[Placement]
) -> tuple[tuple[str, ...], ...]:
    """Units, alone or in pairs, whose loss takes the last copy of some slice with it; only a checkpoint helps then.

    The loss of everybody is none of them. Those of the fewest units come first, and of these those of the fewest ranks.

    Args:
        layout: Layout.
        nodes: Node of each rank of the layout.
        placements: Who keeps what.
    """
    failures = _Failures(layout, nodes)
    keepers: dict[int, list[int]] = {}
    for one in placements:
        keepers.setdefault(one.owner, []).append(one.keeper)
    found: set[tuple[Unit, ...]] = set()
    for holders in {holders for holders, _ in _slices(None, layout)}:
        found.update(failures.that_lose(holders.union(*(keepers.get(rank, ()) for rank in holders))))
    alone = {units[0] for units in found if len(units) == 1}
    least = [units for units in found if len(units) == 1 or alone.isdisjoint(units)]
    lost = {units: _all_ranks(units) for units in least}
    partial = [units for units, ranks in lost.items() if ranks != failures.everybody]
    partial.sort(key=lambda units: (len(units), len(lost[units]), [min(unit.ranks) for unit in units]))
    return tuple(tuple(unit.name for unit in units) for units in partial)


def _all_ranks(units: Sequence[Unit]) -> frozenset[int]:
    return frozenset[int]().union(*(unit.ranks for unit in units))


class _Failures:
    """The failure units of a layout."""

    def __init__(self, layout: Layout, nodes: Mapping[int, str]) -> None:
        self.everybody = frozenset(layout.ranks)
        self.node_of = {rank: nodes[rank] for rank in layout.ranks}
        self.ranks_of: dict[str, list[int]] = {}
        for rank, node in self.node_of.items():
            self.ranks_of.setdefault(node, []).append(rank)
        self._alone = {rank: Unit(f"rank {rank}", frozenset({rank})) for rank in layout.ranks}
        self._nodes = {node: Unit(node, frozenset(ranks)) for node, ranks in self.ranks_of.items()}

    def that_lose(self, hosts: frozenset[int]) -> Iterator[tuple[Unit, ...]]:
        """Single units, and pairs of units none of which is one, that have all of the hosts."""
        units = {self._nodes[self.node_of[rank]] for rank in hosts}
        most = sorted((len(unit.ranks & hosts) for unit in units), reverse=True)
        if sum(most[:2]) < len(hosts):
            return
        ranks = (self._alone[rank] for rank in sorted(hosts) if len(self.ranks_of[self.node_of[rank]]) > 1)
        every = dict.fromkeys((*sorted(units, key=lambda unit: unit.name), *ranks))
        enough = [unit for unit in every if hosts <= unit.ranks]
        yield from ((unit,) for unit in enough)
        rest = [unit for unit in every if unit not in enough]
        yield from (pair for pair in combinations(rest, 2) if hosts <= pair[0].ranks | pair[1].ranks)


class _Greedy:
    def __init__(self, model: ModelSpec, layout: Layout, nodes: Mapping[int, str], budget_bytes: float) -> None:
        self._failures = _Failures(layout, nodes)
        self._budget_bytes = budget_bytes
        self._place = {rank: place for place, rank in enumerate(sorted(layout.ranks))}
        self._held_bytes = dict.fromkeys(layout.ranks, 0.0)
        self._kept_bytes = dict.fromkeys(layout.ranks, 0.0)
        self._keepers: dict[int, list[int]] = {rank: [] for rank in layout.ranks}
        slices = list(_slices(model, layout))
        for holders, num_bytes in slices:
            for rank in holders:
                self._held_bytes[rank] += num_bytes
        for with_pairs in (False, True):
            for holders in dict.fromkeys(holders for holders, _ in slices):
                while self._add_one(holders, with_pairs=with_pairs):
                    pass

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(Placement(owner=o, keeper=k) for o in sorted(self._keepers) for k in sorted(self._keepers[o]))

    def _add_one(self, holders: frozenset[int], *, with_pairs: bool) -> bool:
        """Give a slice one more host if it needs one; whether that was possible."""
        hosts = holders.union(*(self._keepers[rank] for rank in holders))
        found = [_all_ranks(units) for units in self._open(hosts, with_pairs=with_pairs)]
        if not found:
            return False
        broken = {one: sum(one[-1] not in units for units in found) for one in self._candidates(hosts, holders)}
        if not any(broken.values()):
            return False
        *_, owner, keeper = min(broken, key=lambda one: (-broken[one], one))
        self._keepers[owner].append(keeper)
        self._kept_bytes[keeper] += self._held_bytes[owner]
        return True

    def _open(self, hosts: frozenset[int], *, with_pairs: bool) -> Iterator[tuple[Unit, ...]]:
        for units in self._failures.that_lose(hosts):
            if (with_pairs or len(units) == 1) and _all_ranks(units) != self._failures.everybody:
                yield units

    def _candidates(self, hosts: frozenset[int], holders: frozenset[int]) -> Iterator[tuple[float, int, int, int]]:
        """Of each node who keeps least of those that are no hosts yet: (bytes kept, places away, owner, keeper)."""
        sent = {rank: len(self._keepers[rank]) for rank in holders}
        by_node: dict[str, int] = {}
        for rank in sorted(holders, key=lambda rank: (sent[rank], rank)):
            by_node.setdefault(self._failures.node_of[rank], rank)
        anybody = min(holders, key=lambda rank: (sent[rank], rank))
        for node, ranks in self._failures.ranks_of.items():
            owner = by_node.get(node, anybody)
            least, size, start = self._budget_bytes - self._held_bytes[owner], len(self._place), self._place[owner]
            able = [
                (self._kept_bytes[rank], (self._place[rank] - start) % size, owner, rank)
                for rank in ranks
                if rank not in hosts and self._kept_bytes[rank] <= least
            ]
            if able:
                yield min(able)


def _slices(model: ModelSpec | None, layout: Layout) -> Iterator[tuple[frozenset[int], float]]:
    """Slices that no replica's border cuts: who holds each, and what it weighs; without a model nothing.

    Exact proportional borders: whatever the granules of a tensor are, rounding keeps their order, so no tensor has
    a slice whose holders are not among these.
    """
    weights: dict[tuple[int, ...], int] = {}
    for block in range(layout.num_blocks):
        cost = None if model is None else model.blocks[block]
        num_bytes = 0 if cost is None else cost.parameter_bytes + cost.optimizer_bytes
        places = tuple([_place_of(replica.stages, block) for replica in layout.replicas])
        weights[places] = weights.get(places, 0) + num_bytes
    for places, num_bytes in weights.items():
        stages = [replica.stages[place] for replica, place in zip(layout.replicas, places, strict=True)]
        borders_of = {shares: _borders(shares) for shares in {stage.shares for stage in stages}}
        for start, stop in pairwise(sorted({border for borders in borders_of.values() for border in borders})):
            shard_of = {shares: bisect_right(borders, start) - 1 for shares, borders in borders_of.items()}
            yield frozenset([stage.ranks[shard_of[stage.shares]] for stage in stages]), num_bytes * float(stop - start)


def _borders(shares: Sequence[int]) -> list[Fraction]:
    return [Fraction(run, sum(shares)) for run in accumulate(shares, initial=0)]


def _place_of(stages: Sequence[Stage], block: int) -> int:
    return bisect_right([stage.first_block for stage in stages], block) - 1
