"""Lever: rejoin. Ranks that are alive and out of the layout go back to the place they had in the full shape."""

from collections.abc import Iterable

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.repair import ways_to_repair
from evenkeel.planning.situation import Situation


class Rejoin(Lever):
    """The full shape, as far as its ranks are alive."""

    name = "rejoin"
    asked = Asked.MEMBERS, 1

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """The full shape without those of its ranks that are dead, if that differs from ``base``."""
        home = situation.home
        if (home.schedule, home.mix) == (base.schedule, base.mix) and home.replicas == base.replicas:
            return  # the lever drop_dead has proposed it
        for shape in ways_to_repair(home, situation.throughputs.keys()):
            if shape != base:
                yield shape

    def describe(self, before: Layout, after: Layout) -> str:
        """Who is back, and replicas and stages that are back."""
        back = sorted(set(after.ranks) - set(before.ranks))
        lines = [f"rank {', '.join(map(str, back))} at work"] if back else []
        if len(after.replicas) > len(before.replicas):
            lines.append(f"{len(after.replicas)} replicas (were {len(before.replicas)})")
        return "; ".join(lines) or "back to the full shape"
