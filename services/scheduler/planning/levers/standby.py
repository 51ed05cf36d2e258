"""Lever: standby. Live ranks without a position become further shards where they speed up the job most."""

from collections.abc import Iterable
from dataclasses import replace

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.levers.micro_batch_quota import best_quotas
from services.scheduler.planning.levers.tensor_width import best_stage
from services.scheduler.planning.repair import with_standbys
from services.scheduler.planning.situation import Situation

_MAX_PLACED = 16


def _seconds(situation: Situation, layout: Layout) -> float:
    """Time of a layout when its quotas are chosen well: what a further shard is worth shows only then."""

    def seconds_of(replica: int, quota: int) -> float:
        return situation.makespan(layout.replicas[replica].stages, quota, layout.schedule)

    quotas = best_quotas(seconds_of, [replica.num_micro_batches for replica in layout.replicas])
    return max(seconds_of(d, quota) for d, quota in enumerate(quotas))


def _with_shard(situation: Situation, layout: Layout, rank: int, replica: int, stage: int) -> Layout | None:
    """The layout with ``rank`` as one more shard of a stage; None when it is elsewhere or gets no work."""
    old = layout.replicas[replica].stages[stage]
    if situation.domain(rank) not in map(situation.domain, old.ranks):
        return None
    wider = best_stage(
        situation,
        Stage(
            first_block=old.first_block,
            stop_block=old.stop_block,
            ranks=(*old.ranks, rank),
            shares=(*old.shares, max(1, min(old.shares))),
        ),
    )
    if rank not in wider.ranks:
        return None
    stages = list(layout.replicas[replica].stages)
    stages[stage] = wider
    replicas = list(layout.replicas)
    replicas[replica] = Replica(stages=tuple(stages), num_micro_batches=replicas[replica].num_micro_batches)
    bare = replace(layout, replicas=tuple(replicas), standbys=())
    return with_standbys(bare, situation.throughputs.keys())


class Standby:
    """Standbys as further shards."""

    name = "standby"
    structural = True

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with its standbys placed one by one, fastest first, each where it helps most, while it helps."""
        if not base.standbys:
            return
        layout, seconds = base, _seconds(situation, base)
        waiting = sorted(base.standbys, key=lambda rank: (-situation.throughputs[rank], rank))
        for rank in waiting[:_MAX_PLACED]:
            options = []
            seen = set()
            for d, replica in enumerate(layout.replicas):
                for s, stage in enumerate(replica.stages):
                    speeds = tuple(tuple(situation.throughputs[r] for r in other.ranks) for other in replica.stages)
                    key = (s, speeds, tuple(other.stop_block for other in replica.stages), stage.shares)
                    if key in seen:
                        continue
                    seen.add(key)
                    wider = _with_shard(situation, layout, rank, d, s)
                    if wider is not None:
                        options.append((_seconds(situation, wider), d, s, wider))
            if not options:
                continue
            best = min(options, key=lambda option: option[:3])
            if best[0] < seconds * (1.0 - 1e-9):
                seconds, layout = best[0], best[3]
        if layout is not base:
            yield layout

    def describe(self, before: Layout, after: Layout) -> str:
        """Which standbys are at work now."""
        placed = sorted(set(after.ranks) - set(before.ranks))
        return f"standby {', '.join(map(str, placed))} at work" if placed else "standbys as further shards"
