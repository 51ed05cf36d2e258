"""Lever: standby. Live ranks without a position become further shards where they speed up the job most.

Replicas of equal shape and speeds are one kind, and what a shard is worth is computed once for each: the work follows
the number of different replicas, not of devices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
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
    """A job's replicas by kind while standbys are placed.

    Args:
        situation: Who is alive, and how fast.
        layout: Where they are.
        known: Paces of kinds; is added to.
    """

    def __init__(self, situation: Situation, layout: Layout, known: dict[_Key, Pace]) -> None:
        self._situation, self.layout, self._known = situation, layout, known
        self._paces = [self._pace(replica.stages) for replica in layout.replicas]
        self._counts = Counter(self._paces)
        self._first: dict[Pace, int] = {}
        for d, pace in enumerate(self._paces):
            self._first.setdefault(pace, d)
        self._needs: dict[float, list[int]] = {}
        self._least: dict[tuple[Pace, float, float], list[float]] = {}
        self._near: dict[int | str, dict[tuple[int, int], None]] = {}
        if situation.keeps_domains:
            for d, replica in enumerate(layout.replicas):
                for s, stage in enumerate(replica.stages):
                    for rank in stage.ranks:
                        self._near.setdefault(situation.domain(rank), {})[d, s] = None

    def _pace(self, stages: _Stages) -> Pace:
        """The pace of a kind: the same object for all that are alike."""
        speeds = self._situation.throughputs
        key = tuple([(s.stop_block, s.shares, tuple([speeds[rank] for rank in s.ranks])) for s in stages])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Pace(self._situation, stages, self.layout.schedule)
        return found

    def places(self, rank: int) -> Iterator[tuple[int, int]]:
        """(replica, stage) where a rank may go; of places that are alike only the first."""
        if self._situation.keeps_domains:
            seen = set()
            for d, s in sorted(self._near.get(self._situation.domain(rank), {})):
                if (self._paces[d], s) not in seen:
                    seen.add((self._paces[d], s))
                    yield d, s
            return
        for d in self._first.values():
            yield from ((d, s) for s in range(len(self.layout.replicas[d].stages)))

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

    def best_place(self, rank: int, seconds: float) -> tuple[float, tuple[Replica, ...]] | None:
        """Where a rank helps most: (the job's pipeline seconds then, its replicas); None where nowhere.

        Args:
            rank: It.
            seconds: Pipeline seconds of the job without it.
        """
        best: tuple[float, tuple[int, int], Pace] | None = None
        most = last = seconds * _LESS
        # The sooner a good place is found the more others go without a look; of equal places it is the first.
        for least, d, s in sorted([(self.least_seconds(most, d, s, rank), d, s) for d, s in self.places(rank)]):
            if least > last:
                break
            limit = last if best is None or (d, s) < best[1] else most
            wider = self.with_shard(rank, d, s) if self.least_seconds(limit, d, s, rank) <= limit else None
            if wider is not None and self.is_within(limit, d, wider):
                taken = self.seconds(d, wider)
                best, most, last = (taken, (d, s), wider), taken * _LESS, min(last, taken * _MORE)
        if best is None:
            return None
        replicas = list(self.layout.replicas)
        d = best[1][0]
        replicas[d] = Replica(stages=best[2].stages, num_micro_batches=replicas[d].num_micro_batches)
        return best[0], tuple(replicas)

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


class _Placing:
    """Standbys placed one by one. A place that was sought with more or fewer spare ranks is not sought again."""

    def __init__(self, situation: Situation, base: Layout) -> None:
        self._situation, self.layout = situation, base
        self._known: dict[_Key, Pace] = {}
        self._job: _Job | None = None
        self._seconds: float | None = None

    def place(self, rank: int) -> bool:
        """Put a rank where it helps most; False where it does not."""
        placed, replicas = self._situation.looks.placed, self.layout.replicas
        key = id(replicas), self.layout.schedule, rank
        if key not in placed:
            # The replicas are kept with the answer, so that their id stays their own.
            placed[key] = replicas, self._best(rank)
        best = placed[key][1]
        if best is None:
            return False
        self._seconds, self._job = best[0], None
        self.layout = replace(self.layout, replicas=best[1], standbys=())
        return True

    def _best(self, rank: int) -> tuple[float, tuple[Replica, ...]] | None:
        if self._job is None:
            self._job = _Job(self._situation, self.layout, self._known)
        if self._seconds is None:
            self._seconds = self._job.seconds()
        return self._job.best_place(rank, self._seconds)


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
        placing = _Placing(situation, base)
        waiting = sorted(base.standbys, key=lambda rank: (-situation.throughputs[rank], rank))
        useless: set[tuple[float, int | str]] = set()
        steps: list[Layout] = []
        for rank in waiting[:_MAX_PLACED]:
            alike = situation.throughputs[rank], situation.domain(rank)
            if alike in useless:
                continue
            if placing.place(rank):
                useless = set()
                steps.append(placing.layout)
            else:
                useless.add(alike)
        last = steps[-1:]
        if last:
            full_width = max([len(stage.ranks) for stage in situation.home.replicas[0].stages])
            narrow = narrowed(last[0], full_width, situation.throughputs)
            last += [narrow] if narrow is not last[0] else []
        for layout in [*last, *steps[: min(_MAX_STEPS, len(steps) - 1)]]:
            yield with_standbys(replace(layout, standbys=()), situation.throughputs.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Which standbys are at work now."""
        placed = sorted(set(after.ranks) - set(before.ranks))
        return f"standby {', '.join(map(str, placed))} at work" if placed else "standbys as further shards"
