"""Lever: standby. Live ranks without a position become further shards where they speed up the job most.

Replicas of equal shape and speeds are one kind, and what a shard is worth is computed once for each: the work follows
the number of different replicas, not of devices.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapify, heapreplace

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.levers.balance.cuts import best_stage
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.pipelined.pace import Pace
from evenkeel.planning.repair import repaired, with_standbys
from evenkeel.planning.situation import Situation

_MAX_PLACED = 16
_MAX_TRIED = 12
_MAX_STEPS = 2
_LESS = 1.0 - 1e-9


class _Job:
    """A job's replicas by kind, and where one more shard helps them most.

    Args:
        situation: Who is alive, and how fast.
        layout: Where they are.
    """

    def __init__(self, situation: Situation, layout: Layout) -> None:
        self._situation, self.layout = situation, layout
        self._paces = [self._pace(replica.stages) for replica in layout.replicas]

    @cached_property
    def _counts(self) -> Counter[Pace]:
        return Counter(self._paces)

    def _pace(self, stages: tuple[Stage, ...]) -> Pace:
        """The pace of a kind: the same object for all that are alike."""
        situation, schedule = self._situation, self.layout.schedule
        alike = situation.alike(stages)
        return situation.looks.once("pace", schedule, of=(alike,), find=lambda: Pace(situation, alike, schedule))

    def with_rank(self, rank: int) -> tuple[Replica, ...] | None:
        """The replicas with a rank where it helps most; None where it helps nowhere."""
        found = {}
        for place in self._promising(rank)[:_MAX_TRIED]:
            stages = self._with_shard(rank, *place)
            if stages is not None:
                found[place] = self.seconds(place[0], stages), stages
        least = min([seconds for seconds, _ in found.values()], default=math.inf)
        if least >= self.seconds() * _LESS:
            return None
        best = min([place for place, (seconds, _) in found.items() if seconds * _LESS <= least])
        wider = replace(self.layout.replicas[best[0]], stages=found[best][1])
        return tuple([wider if d == best[0] else replica for d, replica in enumerate(self.layout.replicas)])

    def _promising(self, rank: int) -> list[tuple[int, int]]:
        """(replica, stage) where a rank may go, best first as far as shares can be divided at will.

        Of places that are alike only the first.
        """
        domain, speed, seconds = self._situation.domain, self._situation.throughputs[rank], self.seconds()
        gains = {pace: pace.gains(max(1, pace.within(seconds)), speed) for pace in self._counts}
        found: dict[tuple[Pace, int], tuple[float, int, int]] = {}
        for d, (pace, replica) in enumerate(zip(self._paces, self.layout.replicas, strict=True)):
            for s, stage in enumerate(replica.stages):
                if (pace, s) not in found and domain(rank) in map(domain, stage.ranks):
                    found[pace, s] = -gains[pace][s], d, s
        return [(d, s) for _, d, s in sorted(found.values())]

    def _with_shard(self, rank: int, replica: int, stage: int) -> tuple[Stage, ...] | None:
        """Stages of a replica with ``rank`` as one more shard; None when it would get nothing to do there."""
        stages = self.layout.replicas[replica].stages
        old = stages[stage]
        more = replace(old, ranks=(*old.ranks, rank), shares=(*old.shares, max(1, min(old.shares))))
        wider = best_stage(self._situation, more)
        return (*stages[:stage], wider, *stages[stage + 1 :]) if rank in wider.ranks else None

    def seconds(self, replica: int = 0, instead: tuple[Stage, ...] | None = None) -> float:
        """Pipeline seconds of the job with the best quotas, if wanted with other stages in one replica.

        The least time within which all replicas together do the iteration's micro-batches. What a further shard is
        worth shows only with such quotas.
        """
        counts = dict(self._counts)
        if instead is not None:
            counts[self._paces[replica]] -= 1
            pace = self._pace(instead)
            counts[pace] = counts.get(pace, 0) + 1
        kinds = [(pace, count) for pace, count in counts.items() if count]
        total = self.layout.num_micro_batches
        # No replica is ready before its slowest stage has done its quota: within ``floor`` they do too little together.
        floor = total / sum([count / pace.slope for pace, count in kinds])
        quotas = [pace.within(floor) for pace, _ in kinds]
        slowest = max([pace.seconds(quota) for quota, (pace, _) in zip(quotas, kinds, strict=True)])
        done = sum([quota * count for quota, (_, count) in zip(quotas, kinds, strict=True)])
        ready = [(pace.seconds(quotas[k] + 1), k) for k, (pace, _) in enumerate(kinds)]
        heapify(ready)
        while done < total:
            soonest, k = ready[0]
            slowest = max(slowest, soonest)
            quotas[k] += 1
            done += kinds[k][1]
            heapreplace(ready, (kinds[k][0].seconds(quotas[k] + 1), k))
        return slowest


def _narrowed(situation: Situation, layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Those of the layouts that have stages wider than the full shape's, without the slowest shards of these."""
    speeds = situation.throughputs
    for layout in layouts:
        stages = [stage for replica in layout.replicas for stage in replica.stages]
        ordered = [sorted(stage.ranks, key=lambda rank: (-speeds[rank], rank)) for stage in stages]
        surplus = {rank for ranks in ordered for rank in ranks[situation.full_width :]}
        narrow = repaired(layout, speeds.keys() - surplus) if surplus else None
        if narrow is not None:
            yield narrow


class Standby(Lever):
    """Standbys as further shards."""

    name = "standby"
    asked = Asked.SPARES, 0
    is_asked_again = True

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with its standbys placed one by one, fastest first, each where it helps most, while it helps.

        A stage that becomes wider than it was is a risk, so fewer of them may be the better plan: the first steps are
        proposed too, and the last one with them in the place of the slowest shards, so that no stage is wider.
        """
        if not base.standbys:
            return
        job = _Job(situation, base)
        waiting = sorted(base.standbys, key=lambda rank: (-situation.throughputs[rank], rank))
        useless: set[tuple[float, int | str]] = set()
        steps: list[Layout] = []
        for rank in waiting[:_MAX_PLACED]:
            alike = situation.throughputs[rank], situation.domain(rank)
            if alike in useless:
                continue
            before = job.layout
            # A place that was sought with more or fewer spare ranks is not sought again.
            replicas = situation.looks.once(
                "placed", before.schedule, rank, of=(before.replicas,), find=partial(job.with_rank, rank)
            )
            if replicas is None:
                useless.add(alike)
                continue
            useless = set()
            steps.append(replace(before, replicas=replicas, standbys=()))
            job = _Job(situation, steps[-1])
        for layout in [*steps[-1:], *_narrowed(situation, steps[-1:]), *steps[: min(_MAX_STEPS, len(steps) - 1)]]:
            yield with_standbys(replace(layout, standbys=()), situation.throughputs.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Which standbys are at work now."""
        placed = sorted(set(after.ranks) - set(before.ranks))
        return f"standby {', '.join(map(str, placed))} at work" if placed else "standbys as further shards"
