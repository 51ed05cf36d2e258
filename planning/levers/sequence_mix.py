"""Lever: sequence mix. Which of the iteration's documents go to which replica, so that unequal replicas end together.

Micro-batches are whole and quotas coarse: with eight of them a replica that lost an eighth of its speed cannot be
relieved by exactly that. Its micro-batches can be made smaller, since documents are many and small. The samples of the
iteration stay the same. Offered only to jobs whose first layout has a mix (:mod:`evenkeel.layouts.sizes.mix`): their
engine follows such rules. Time is taken as proportional to a micro-batch's size.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.situation import Situation

_UNITS = 1000
_SAME = 0.002


def sizes_for(seconds: Sequence[float], quotas: Sequence[int], max_scale: float) -> tuple[float, ...] | None:
    """Size of each replica's micro-batches, 1 = mean, with which all end at the same time.

    Those that would be larger than ``max_scale`` get that, and the others the rest. None when even that is too little.

    Args:
        seconds: Time of each replica with micro-batches of size 1.
        quotas: Micro-batches of each.
        max_scale: Largest size.
    """
    free = [d for d, quota in enumerate(quotas) if quota]
    left = float(sum(quotas))
    sizes = [1.0] * len(quotas)
    while free:
        together = left / sum([quotas[d] / seconds[d] for d in free])
        capped = [d for d in free if together / seconds[d] > max_scale]
        if not capped:
            for d in free:
                sizes[d] = together / seconds[d]
            return tuple(sizes)
        for d in capped:
            sizes[d] = max_scale
            left -= quotas[d] * max_scale
        free = [d for d in free if d not in set(capped)]
        if left <= 0.0:
            return None
    return None


def best_mix(seconds_of: Callable[[int, int], float], quotas: Sequence[int], rule: Mix) -> tuple[float, Mix] | None:
    """The rule with which replicas end together, and when they do; None when sizes would be too large.

    Args:
        seconds_of: Time of (replica, quota) with micro-batches of size 1.
        quotas: Micro-batches of each replica.
        rule: For its costs and its largest size.
    """
    seconds = [seconds_of(d, quota) for d, quota in enumerate(quotas)]
    sizes = sizes_for(seconds, quotas, rule.max_scale)
    if sizes is None:
        return None
    even = max(sizes) - min(sizes) < _SAME
    groups = [
        (quota, 1 if even else max(1, round(size * _UNITS))) for size, quota in zip(sizes, quotas, strict=True) if quota
    ]
    chosen = replace(rule, counts=tuple(count for count, _ in groups), weights=tuple(weight for _, weight in groups))
    scales = chosen.scales(quotas)
    return max([each * scale for each, scale in zip(seconds, scales, strict=True)]), chosen


class SequenceMix(Lever):
    """Micro-batches whose size follows the speed of their replica."""

    name = "sequence_mix"
    asked = Asked.TUNING, 3

    def is_possible(self, situation: Situation) -> bool:
        """Whether the job has a mix."""
        return situation.home.mix is not None

    def describe(self, before: Layout, after: Layout) -> str:
        """Sizes of micro-batches per replica."""
        if before.mix == after.mix or after.mix is None:
            return ""
        scales = after.mix.scales([replica.num_micro_batches for replica in after.replicas])
        changed = [f"{d}: {scale:.2f}" for d, scale in enumerate(scales) if abs(scale - 1.0) >= _SAME]
        return f"micro-batches sized by replica, {', '.join(changed)}" if changed else "micro-batches of equal size"
