"""Lever: standby. Live ranks without a position become further shards where they speed up the job most.

Replicas of equal shape and speeds are one kind, and what a shard is worth is computed once for each: the work follows
the number of different replicas, not of devices.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heapreplace

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.levers.tensor_width import best_stage
from services.scheduler.planning.repair import narrowed, with_standbys
from services.scheduler.planning.situation import Situation

_MAX_PLACED = 16
_MAX_STEPS = 2
_ROUNDED = 1.0 + 1e-9
_Stages = tuple[Stage, ...]
_Key = tuple[tuple[int, tuple[int, ...], tuple[float, ...]], ...]


class _Pace:
    """How fast replicas of some stages are; what was asked once is known."""

    def __init__(self, situation: Situation, stages: _Stages, schedule: str) -> None:
        self._situation, self._stages, self._schedule = situation, stages, schedule
        parts = situation.parts(stages, "1f1b")
        self._parts = parts[:, 0] + parts[:, 1]
        self._slowest = int(self._parts.argmax())
        self.slope = float(self._parts[self._slowest])
        self._next_slope = max([0.0, *self._parts[: self._slowest], *self._parts[self._slowest + 1 :]])
        self._known: dict[int, float] = {}

    def seconds(self, quota: int) -> float:
        """Pipeline seconds of a quota."""
        found = self._known.get(quota)
        if found is None:
            found = self._known[quota] = self._situation.makespan(self._stages, quota, self._schedule)
        return found

    def is_within(self, quota: int, seconds: float) -> bool:
        """Whether a quota is done within some seconds."""
        if quota <= 0:
            return True
        return quota <= int(seconds / self.slope) and self._least(quota, seconds) <= seconds >= self.seconds(quota)

    def within(self, seconds: float) -> int:
        """The largest quota done within some seconds, at most one more than the slowest stage alone could do."""
        most = bisect_right(range(int(seconds / self.slope) + 1), seconds, key=lambda q: self._least(q, seconds)) - 1
        # The closed form is seldom wrong by a micro-batch.
        if most < 0 or self.seconds(most) <= seconds:
            return max(0, most)
        return max(0, bisect_right(range(most), seconds, key=self.seconds) - 1)

    def may_do(self, quota: int, seconds: float, stage: int, speed: float) -> bool:
        """Whether a quota can be done within some seconds with one more shard in a stage, however that is cut."""
        if quota <= 0:
            return True
        speeds, shards = self._situation.throughputs, self._stages[stage]
        whole = self._situation.cost.healthy_seconds(shards.first_block, shards.stop_block)
        least = whole / (sum([speeds[rank] for rank in shards.ranks]) + speed)
        others = self._next_slope if self._slowest == stage else self.slope
        if quota * max(others, least) > seconds * _ROUNDED:
            return False
        parts = self._parts.copy()
        parts[stage] = least
        return self._situation.least_makespan(parts, quota, self._schedule, seconds) <= seconds

    def _least(self, quota: int, limit: float) -> float:
        return self._situation.least_makespan(self._parts, quota, self._schedule, limit)


class _Job:
    """A job's replicas by kind while standbys are placed.

    Args:
        situation: Who is alive, and how fast.
        layout: Where they are.
        paces: What is known of kinds; is added to.
    """

    def __init__(self, situation: Situation, layout: Layout, paces: dict[_Key, _Pace]) -> None:
        self._situation, self.layout, self._paces = situation, layout, paces
        self.shapes: list[_Stages] = [replica.stages for replica in layout.replicas]
        self._keys = [self._key(stages) for stages in self.shapes]
        self._counts: dict[_Key, int] = {}
        self._first: dict[_Key, int] = {}
        self._needs: dict[float, list[int]] = {}
        self._near: dict[int | str, dict[tuple[int, int], None]] = {}
        for d, key in enumerate(self._keys):
            self._counts[key] = self._counts.get(key, 0) + 1
            self._first.setdefault(key, d)
        if situation.keeps_domains:
            for d, stages in enumerate(self.shapes):
                for s, stage in enumerate(stages):
                    for rank in stage.ranks:
                        self._near.setdefault(situation.domain(rank), {})[d, s] = None

    def _key(self, stages: _Stages) -> _Key:
        speeds = self._situation.throughputs
        return tuple([(s.stop_block, s.shares, tuple([speeds[rank] for rank in s.ranks])) for s in stages])

    def places(self, rank: int) -> Iterator[tuple[int, int]]:
        """(replica, stage) where a rank may go; of places that are alike only the first."""
        if self._situation.keeps_domains:
            seen = set()
            for d, s in sorted(self._near.get(self._situation.domain(rank), {})):
                if (self._keys[d], s) not in seen:
                    seen.add((self._keys[d], s))
                    yield d, s
            return
        for d in self._first.values():
            yield from ((d, s) for s in range(len(self.shapes[d])))

    def with_shard(self, rank: int, replica: int, stage: int) -> _Stages | None:
        """Stages of a replica with ``rank`` as one more shard; None when it would get nothing to do there."""
        stages = self.shapes[replica]
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
        return (*stages[:stage], wider, *stages[stage + 1 :]) if rank in wider.ranks else None

    def layout_with(self, replica: int, stages: _Stages) -> Layout:
        """The layout with other stages in one replica."""
        replicas = list(self.layout.replicas)
        replicas[replica] = Replica(stages=stages, num_micro_batches=replicas[replica].num_micro_batches)
        return replace(self.layout, replicas=tuple(replicas), standbys=())

    def is_within(self, limit: float, replica: int, instead: _Stages) -> bool:
        """Whether the job is done within some pipeline seconds with other stages in one replica."""
        return _Pace(self._situation, instead, self.layout.schedule).is_within(self._needed(limit, replica), limit)

    def may_help(self, limit: float, replica: int, stage: int, rank: int) -> bool:
        """Whether the job may be done within some pipeline seconds with a rank as one more shard of a stage."""
        pace, speed = self._pace(self._keys[replica]), self._situation.throughputs[rank]
        return pace.may_do(self._needed(limit, replica), limit, stage, speed)

    def _needed(self, limit: float, replica: int) -> int:
        """Micro-batches that a replica has to do within some seconds, so that the job is done."""
        if limit not in self._needs:
            done = {key: self._pace(key).within(limit) for key in self._counts}
            lacking = self.layout.num_micro_batches - sum([done[key] * count for key, count in self._counts.items()])
            self._needs = {limit: [lacking + done[key] for key in self._keys]}
        return self._needs[limit][replica]

    def seconds(self, replica: int = 0, instead: _Stages | None = None) -> float:
        """Pipeline seconds of the job with the best quotas, if wanted with other stages in one replica.

        The least time within which all replicas together do the iteration's micro-batches. What a further shard is
        worth shows only with such quotas.
        """
        kinds = [(self._pace(key), count) for key, count in self._counts.items()]
        if instead is not None:
            own = list(self._counts).index(self._keys[replica])
            kinds[own] = kinds[own][0], kinds[own][1] - 1
            kinds.append((_Pace(self._situation, instead, self.layout.schedule), 1))
        kinds = [(pace, count) for pace, count in kinds if count]
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

    def _pace(self, key: _Key) -> _Pace:
        found = self._paces.get(key)
        if found is None:
            stages = self.shapes[self._first[key]]
            found = self._paces[key] = _Pace(self._situation, stages, self.layout.schedule)
        return found


class Standby:
    """Standbys as further shards."""

    name = "standby"
    structural = True

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with its standbys placed one by one, fastest first, each where it helps most, while it helps.

        A stage that becomes wider than it was is a risk, so fewer of them may be the better plan: the first steps are
        proposed too, and the last one with them in the place of the slowest shards, so that no stage is wider.
        """
        if not base.standbys:
            return
        paces: dict[_Key, _Pace] = {}
        job = _Job(situation, base, paces)
        seconds = job.seconds()
        waiting = sorted(base.standbys, key=lambda rank: (-situation.throughputs[rank], rank))
        useless: set[tuple[float, int | str]] = set()
        steps: list[Layout] = []
        for rank in waiting[:_MAX_PLACED]:
            alike = situation.throughputs[rank], situation.domain(rank)
            if alike in useless:
                continue
            best: tuple[float, int, _Stages] | None = None
            for d, s in job.places(rank):
                most = (seconds if best is None else best[0]) * (1.0 - 1e-9)
                wider = job.with_shard(rank, d, s) if job.may_help(most, d, s, rank) else None
                if wider is not None and job.is_within(most, d, wider):
                    best = job.seconds(d, wider), d, wider
            if best is not None:
                seconds, useless = best[0], set()
                job = _Job(situation, job.layout_with(best[1], best[2]), paces)
                steps.append(job.layout)
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
