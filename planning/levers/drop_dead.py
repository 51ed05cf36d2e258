"""Lever: go on without the dead. Shards leave their stages; an empty stage is merged or takes its replica out."""

from collections.abc import Iterable

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.repair import ways_to_repair
from evenkeel.planning.situation import Situation


class DropDead(Lever):
    """The layout without its dead ranks."""

    name = "drop_dead"
    asked = Asked.MEMBERS, 0

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` without dead ranks, empty stages merged into their neighbours, or their replicas dropped."""
        yield from ways_to_repair(base, situation.throughputs.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Who left, and what became of empty stages and replicas."""
        gone = sorted(set(before.ranks) - set(after.ranks) - set(after.standbys))
        lines = [f"without rank {', '.join(map(str, gone))}"] if gone else []
        if len(after.replicas) < len(before.replicas):
            lines.append(f"{len(after.replicas)} replicas (were {len(before.replicas)})")
        else:
            for d, (was, becomes) in enumerate(zip(before.replicas, after.replicas, strict=False)):
                if len(becomes.stages) < len(was.stages):
                    lines.append(f"replica {d} has {len(becomes.stages)} stages (had {len(was.stages)})")
        return "; ".join(lines)
