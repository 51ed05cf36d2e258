"""Lever: standby. Live ranks without a position become further shards where they speed up the job most.

Replicas of equal shape and speeds are one kind, and what a shard is worth is computed once for each: the work follows
the number of different replicas, not of devices.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from heapq import heapify, heapreplace

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.levers.balance.tensor_width import best_stage
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.pipelined.pace import Pace
from evenkeel.planning.repair import narrowed, with_standbys
from evenkeel.planning.situation import Situation

_MAX_PLACED = 16
_MAX_STEPS = 2
_LESS, _MORE = 1.0 - 1e-9, 1.0 + 1e-9
_Stages = tuple[Stage, ...]
_Key = tuple[tuple[int, tuple[int, ...], tuple[float, ...]], ...]


class _Job:
    """A job's replicas by kind, and where one more shard helps them most.

    Args:
        situation: Who is alive, and how fast.
        layout: Where they are.
        known: Paces of kinds; is added to.
    """

    def __init__(self, situation: Situation, layout: Layout, known: dict[_Key, Pace]) -> None:
        self._situation, self.layout, self._known = situation, layout, known
        self._needs: dict[float, list[int]] = {}
        self._least: dict[tuple[Pace, float, float], list[float]] = {}

    @cached_property
    def _paces(self) -> list[Pace]:
        """Of each replica."""
        return [self._pace(replica.stages) for replica in self.layout.replicas]

    @cached_property
    def _counts(self) -> Counter[Pace]:
        return Counter(self._paces)

    @cached_property
    def _now(self) -> float:
        """Pipeline seconds of the job as it is."""
        return self.seconds()

    def _pace(self, stages: _Stages) -> Pace:
        """The pace of a kind: the same object for all that are alike."""
        speeds = self._situation.throughputs
        key = tuple([(s.stop_block, s.shares, tuple([speeds[rank] for rank in s.ranks])) for s in stages])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Pace(self._situation, stages, self.layout.schedule)
        return found

    def places(self, rank: int) -> list[tuple[int, int]]:
        """(replica, stage) where a rank may go; of places that are alike only the first."""
        domain, first = self._situation.domain, dict[tuple[Pace, int], tuple[int, int]]()
        for d, (pace, replica) in enumerate(zip(self._paces, self.layout.replicas, strict=True)):
            for s, stage in enumerate(replica.stages):
                if (pace, s) not in first and domain(rank) in map(domain, stage.ranks):
                    first[pace, s] = d, s
        return list(first.values())

    def with_shard(self, rank: int, replica: int, stage: int) -> Pace | None:
        """Pace of a replica with ``rank`` as one more shard; None when it would get nothing to do there."""
        stages = self.layout.replicas[replica].stages
        old = stages[stage]
        wider = best_stage(
            self._situation,
            Stage(
                first_block=old.first_block,
                stop_block=old.stop_block,
                ranks=(*old.ranks, rank),
                shares=(*old.shares, max(1, min(old.shares))),
            ),
        )
        if rank not in wider.ranks:
            return None
        return Pace(self._situation, (*stages[:stage], wider, *stages[stage + 1 :]), self.layout.schedule)

    def with_rank(self, rank: int) -> tuple[Replica, ...] | None:
        """The replicas with a rank where it helps most; None where it helps nowhere."""
        best: tuple[tuple[int, int], Pace] | None = None
        most = last = self._now * _LESS
        # The sooner a good place is found the more others go without a look; of equal places it is the first.
        for least, d, s in sorted([(self.least_seconds(most, d, s, rank), d, s) for d, s in self.places(rank)]):
            if least > last:
                break
            limit = last if best is None or (d, s) < best[0] else most
            wider = self.with_shard(rank, d, s) if self.least_seconds(limit, d, s, rank) <= limit else None
            if wider is not None and self.is_within(limit, d, wider):
                taken = self.seconds(d, wider)
                best, most, last = ((d, s), wider), taken * _LESS, min(last, taken * _MORE)
        if best is None:
            return None
        (d, _), wider = best
        return tuple([replace(r, stages=wider.stages) if e == d else r for e, r in enumerate(self.layout.replicas)])

    def is_within(self, limit: float, replica: int, instead: Pace) -> bool:
        """Whether the job is done within some pipeline seconds with one replica at another pace."""
        return instead.is_within(self._needed(limit, replica), limit)

    def least_seconds(self, limit: float, replica: int, stage: int, rank: int) -> float:
        """Seconds that a replica needs at least for its part of a job that is done within some seconds.

        Args:
            limit: Those seconds.
            replica: It.
            stage: Of which a rank is one more shard.
            rank: That rank.
        """
        pace, speed = self._paces[replica], self._situation.throughputs[rank]
        if (pace, speed, limit) not in self._least:
            self._least[pace, speed, limit] = pace.least_seconds(self._needed(limit, replica), limit, speed)
        return self._least[pace, speed, limit][stage]

    def _needed(self, limit: float, replica: int) -> int:
        """Micro-batches that a replica has to do within some seconds, so that the job is done."""
        if limit not in self._needs:
            done = {pace: pace.within(limit) for pace in self._counts}
            lacking = self.layout.num_micro_batches - sum([done[pace] * n for pace, n in self._counts.items()])
            self._needs[limit] = [lacking + done[pace] for pace in self._paces]
        return self._needs[limit][replica]

    def seconds(self, replica: int = 0, instead: Pace | None = None) -> float:
        """Pipeline seconds of the job with the best quotas, if wanted with one replica at another pace.

        The least time within which all replicas together do the iteration's micro-batches. What a further shard is
        worth shows only with such quotas.
        """
        counts = dict(self._counts)
        if instead is not None:
            counts[self._paces[replica]] -= 1
            counts[instead] = 1
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
        paces: dict[_Key, Pace] = {}
        job = _Job(situation, base, paces)
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
            job = _Job(situation, steps[-1], paces)
        last = steps[-1:]
        if last:
            narrow = narrowed(last[0], situation.full_width, situation.throughputs)
            last += [narrow] if narrow is not last[0] else []
        for layout in [*last, *steps[: min(_MAX_STEPS, len(steps) - 1)]]:
            yield with_standbys(replace(layout, standbys=()), situation.throughputs.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Which standbys are at work now."""
        placed = sorted(set(after.ranks) - set(before.ranks))
        return f"standby {', '.join(map(str, placed))} at work" if placed else "standbys as further shards"
