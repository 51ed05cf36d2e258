"""Lever: migrate stage. Some micro-batches of a replica run one stage on the same stage of another replica.

Whole micro-batches (:mod:`evenkeel.planning.levers.balance.micro_batch_quota`) relieve all stages of a
replica by as
much; a route relieves the slow one alone. So replicas with different slow stages help one another, as ReCycle
(arXiv 2405.14009) does for dead and ResiHP (arXiv 2605.06374) for slow stages. Nothing moves but activations; only the
groups of an epoch are built anew. Offered to jobs whose first layout is routable: their engine runs such layouts. Not
where links are slow: routes would cross them.

How many micro-batches go where is water-filling: from the stage with most work to whoever has done with one more the
soonest. Which ones those are decides how long pipelines stall for one another: evenly spaced ones are tried first and
then moved one by one, as long as the joint run of the replicas concerned gets shorter and the budget lasts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.planning.costs.risks import RISK_MARGIN, num_risks
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.pipelined.routed import JointRun, sizes_of
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import same
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE

if TYPE_CHECKING:
    from evenkeel.planning.search.candidate import Candidate

_BUDGET = 12_000
_MOST_OPERATIONS = 4_000
_PHASES = (0.0, 0.5, 0.999)
_LESS = 1.0 - 1e-6
_WORTH = 0.995
_MAX_LOOKED_AT, _MAX_ROUTED, _MAX_ROUTED_OF_FEW = 4, 2, 4
_Move = tuple[int, int, int]
_Place = tuple[int, int, int]
_Hosts = dict[tuple[int, int], int]


def least_routed_seconds(situation: Situation, layout: Layout) -> float:
    """Seconds per iteration that a layout does not get below, whatever its routes.

    A stage and its likes in other replicas have their work to do, as if it could be divided at will, after some
    micro-batch has come there. Forward and backward are done before the last one has gone back; the weights' parts of a
    split backward need not be.
    """
    exchanged = situation.cost.gradients.seconds([replica.stages for replica in layout.replicas])
    waited_for = _least_behind(situation, layout, num_parts=2, both_ways=True)
    return situation.cost.total(
        max(waited_for, _least_behind(situation, layout, num_parts=3, both_ways=False)), exchanged
    )


def _least_behind(situation: Situation, layout: Layout, *, num_parts: int, both_ways: bool) -> float:
    """The longest that some stage and its likes take for these parts, after the way there, or there and back."""
    work: dict[_Place, float] = {}
    rate: dict[_Place, float] = {}
    least: dict[_Place, float] = {}
    for replica, scale in zip(layout.replicas, sizes_of(layout), strict=True):
        ahead, size = 0.0, replica.num_micro_batches * scale
        for s, (stage, parts) in enumerate(
            zip(replica.stages, situation.parts(replica.stages, layout.schedule).tolist(), strict=True)
        ):
            place, seconds = (s, stage.first_block, stage.stop_block), sum(parts[:num_parts])
            work[place] = work.get(place, 0.0) + size
            rate[place] = rate.get(place, 0.0) + (1.0 / seconds if seconds else math.inf)
            if size:
                least[place] = min(least.get(place, ahead * scale), ahead * scale)
            ahead += parts[0] + (parts[1] if both_ways else 0.0)
    return max([work[place] / rate[place] + before for place, before in least.items()])


class MigrateStage(Lever):
    """Stages of micro-batches on other replicas."""

    name = "migrate_stage"
    asked = Asked.POLISH, 0

    def is_possible(self, situation: Situation) -> bool:
        """Whether the job's engine runs routes, or there are some now."""
        return situation.home.routable or bool(situation.layout.routes)

    def starts(
        self, situation: Situation, weighed: Sequence["Candidate"], *, thoroughly: bool
    ) -> Iterator[tuple["Candidate", Layout]]:
        """The most promising few of the candidates and of what they were tuned from.

        What is in force, with the quotas of the full shape, is among them when it is done thoroughly: routes can be
        better than all that whole micro-batches bring.
        """
        if not situation.home.routable:
            return
        fastest = min(candidate.judged for candidate in weighed)
        ordered = sorted(weighed, key=lambda c: c.judged)
        found: list[tuple[float, Candidate, Layout]] = []
        for candidate in ordered if thoroughly else ordered[:_MAX_LOOKED_AT]:
            for layout in (candidate.layout, candidate.base):
                plain = bare(layout)
                if any(same(plain, other) for _, _, other in found) or situation.excess_bytes(plain):
                    continue
                least = least_routed_seconds(situation, plain) * (1.0 + RISK_MARGIN * num_risks(situation, plain))
                if least < fastest * (1.0 - TIE):
                    found.append((least, candidate, plain))
        found.sort(key=lambda each: each[0])
        for _, candidate, plain in found[: _MAX_ROUTED_OF_FEW if thoroughly else _MAX_ROUTED]:
            yield candidate, plain

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with the best routes that were found; nothing when none is worth having."""
        if not situation.home.routable or situation.links or len(base.replicas) < 2:
            return
        unrouted = replace(base, routes=()) if base.routes else base
        hosts = _Search(situation, unrouted).best()
        if hosts:
            routes = [Route(micro_batch=m, stage=s, replica=d) for (m, s), d in hosts.items()]
            yield replace(unrouted, routes=tuple(routes))

    def undone(self, before: Layout, after: Layout) -> Layout:
        """Every micro-batch in its own replica."""
        return replace(after, routes=()) if after.routes else before

    def describe(self, before: Layout, after: Layout) -> str:
        """How many micro-batches run a stage elsewhere, and where."""
        if before.routes == after.routes:
            return ""
        if not after.routes:
            return "every micro-batch runs all stages in its own replica again"
        homes = [d for d, replica in enumerate(after.replicas) for _ in range(replica.num_micro_batches)]
        counts = Counter((homes[route.micro_batch], route.stage, route.replica) for route in after.routes)
        told = [f"{n} of replica {home} at stage {s} to {host}" for (home, s, host), n in sorted(counts.items())]
        more = f" and {len(told) - 4} more" if len(told) > 4 else ""
        return f"stages of micro-batches run on another replica: {', '.join(told[:4])}{more}"


class _Search:
    """Routes for one layout that has none."""

    def __init__(self, situation: Situation, layout: Layout) -> None:
        self._layout = layout
        self._parts = [situation.parts(replica.stages, layout.schedule).tolist() for replica in layout.replicas]
        self._scales = sizes_of(layout)
        self._alone = [
            situation.makespan(replica.stages, replica.num_micro_batches, layout.schedule) * scale
            for replica, scale in zip(layout.replicas, self._scales, strict=True)
        ]
        self._transfer = situation.cost.workload.transfer_seconds
        self._left, self._home = _BUDGET, Paths(layout).home

    def best(self) -> _Hosts:
        """The routes with which the layout is fastest, of those looked at; none when that is hardly faster."""
        moves = self._moves()
        concerned = sorted({d for giver, taker, _ in moves for d in (giver, taker)})
        slowest = max(self._alone)
        if not moves or max([each for d, each in enumerate(self._alone) if d not in concerned], default=0.0) >= slowest:
            return {}
        self._run = JointRun(
            self._layout, concerned, {d: self._parts[d] for d in concerned}, self._transfer, self._scales
        )
        found: tuple[float, int, _Hosts] = (slowest * _WORTH, 0, {})
        for count in _counts(len(moves)):
            for phase in _PHASES:
                hosts = self._spaced(moves[:count], phase)
                found = min(found, (self._seconds(hosts), count, hosts), key=lambda each: each[:2])
                if self._left <= 0:
                    return found[2]
        return self._improved(found[0], found[2])

    def _seconds(self, hosts: Mapping[tuple[int, int], int]) -> float:
        self._left -= self._run.num_operations
        return self._run.seconds(hosts)

    def _moves(self) -> list[_Move]:
        """(giver, taker, stage) of each micro-batch to move, the most useful first."""
        layout, scales = self._layout, self._scales
        quotas = [replica.num_micro_batches for replica in layout.replicas]
        each = [[sum(parts) for parts in row] for row in self._parts]
        loads = [[quotas[d] * scales[d] * seconds for seconds in row] for d, row in enumerate(each)]
        own = [[quotas[d]] * len(row) for d, row in enumerate(each)]
        alike: dict[_Place, list[int]] = {}
        for d, replica in enumerate(layout.replicas):
            for s, stage in enumerate(replica.stages):
                alike.setdefault((s, stage.first_block, stage.stop_block), []).append(d)
        moves: list[_Move] = []
        concerned: set[int] = set()
        operations = [3 * quotas[d] * len(row) for d, row in enumerate(each)]
        while len(moves) < layout.num_micro_batches:
            most, giver, s = max((max(row), -d, -row.index(max(row))) for d, row in enumerate(loads))
            giver, s = -giver, -s
            stage = layout.replicas[giver].stages[s]
            takers = [d for d in alike[s, stage.first_block, stage.stop_block] if d != giver]
            # With nothing left to do nobody would see a slow device recover.
            if not takers or own[giver][s] < 2:
                break
            taker = min(takers, key=lambda d: (loads[d][s] + each[d][s] * scales[giver], d not in concerned, d))
            later = loads[taker][s] + each[taker][s] * scales[giver]
            both = concerned | {giver, taker}
            if later >= most * _LESS or sum([operations[d] for d in both]) > _MOST_OPERATIONS:
                break
            concerned = both
            loads[giver][s] -= each[giver][s] * scales[giver]
            loads[taker][s] = later
            own[giver][s] -= 1
            moves.append((giver, taker, s))
        return moves

    def _spaced(self, moves: Sequence[_Move], phase: float) -> _Hosts:
        """Routes for moves whose micro-batches are evenly spaced over the giver's."""
        takers: dict[tuple[int, int], list[int]] = {}
        for giver, taker, s in moves:
            takers.setdefault((giver, s), []).append(taker)
        hosts = {}
        for (giver, s), of_stage in takers.items():
            micro_batches = self._layout.micro_batches_of(giver)
            for number, taker in enumerate(of_stage):
                place = int((number + phase) * len(micro_batches) / len(of_stage))
                hosts[micro_batches[min(place, len(micro_batches) - 1)], s] = taker
        return hosts

    def _improved(self, seconds: float, hosts: _Hosts) -> _Hosts:
        """Routes moved to other micro-batches of the same home, left out, or longer, while that is faster."""
        better = bool(hosts)
        while better and self._left > 0:
            better = False
            for micro_batch, s in sorted(hosts):
                at = micro_batch
                for other in (-1, *self._layout.micro_batches_of(self._home(micro_batch))):
                    if (other, s) in hosts or (at, s) not in hosts or self._left <= 0:
                        continue
                    changed = {place: host for place, host in hosts.items() if place != (at, s)}
                    if other >= 0:
                        changed[other, s] = hosts[at, s]
                    found = self._seconds(changed)
                    if found < seconds * _LESS:
                        seconds, hosts, at, better = found, changed, other, True
            for longer in self._longer(hosts):
                found = self._seconds(longer) if self._left > 0 else math.inf
                if found < seconds * _LESS:
                    seconds, hosts, better = found, longer, True
        return hosts

    def _longer(self, hosts: _Hosts) -> Iterator[_Hosts]:
        """A micro-batch that runs a stage on another replica runs the one before or after there too."""
        for (micro_batch, s), host in sorted(hosts.items()):
            for other in (s - 1, s + 1):
                if (micro_batch, other) not in hosts and other in self._alike(self._home(micro_batch), host):
                    yield {**hosts, (micro_batch, other): host}

    def _alike(self, one: int, other: int) -> list[int]:
        """Stages with the same blocks in two replicas."""
        pairs = zip(self._layout.replicas[one].stages, self._layout.replicas[other].stages, strict=False)
        return [s for s, (a, b) in enumerate(pairs) if (a.first_block, a.stop_block) == (b.first_block, b.stop_block)]


def _counts(most: int) -> list[int]:
    """How many of the moves are tried: all numbers where they are few, else about a dozen."""
    return sorted({max(1, round(most * part / 12)) for part in range(1, 13)}, reverse=True)
