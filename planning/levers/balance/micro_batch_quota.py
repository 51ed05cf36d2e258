"""Lever: micro-batch quota. Replicas that are slower run fewer of the iteration's micro-batches; their number stays."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever

_FEW = 64


def best_quotas(seconds_of: Callable[[int, int], float], start: Sequence[int]) -> tuple[int, ...]:
    """Quotas of the same sum as ``start`` that minimise the slowest replica's time.

    Exact for times that do not fall with the quota: while some replica could run one more micro-batch in less time than
    the slowest takes now, it takes one from the slowest. When none can, any other quotas give some replica at least one
    more than now, and that takes at least as long. Starting from the quotas in force keeps the change small; where they
    are large many micro-batches change places at a time at first.

    Args:
        seconds_of: Time of (replica, quota).
        start: Quotas to start from.
    """
    quotas, step = list(start), 1
    while step * _FEW <= max(start):
        step *= 2
    while step:
        _exchange(seconds_of, quotas, step)
        step //= 2
    return tuple(quotas)


def _exchange(seconds_of: Callable[[int, int], float], quotas: list[int], step: int) -> None:
    """Move so many micro-batches at a time from the slowest replica to others, as long as those end sooner than it."""
    seconds = [seconds_of(d, quota) for d, quota in enumerate(quotas)]
    slowest = [(-each, d) for d, each in enumerate(seconds)]
    takers = [(seconds_of(d, quota + step), d, quota) for d, quota in enumerate(quotas)]
    heapify(slowest)
    heapify(takers)
    while True:
        # Entries of a replica whose quota has changed since are stale: its newer ones are in the heaps too.
        while -slowest[0][0] != seconds[slowest[0][1]]:
            heappop(slowest)
        giver = slowest[0][1]
        while takers and (takers[0][2] != quotas[takers[0][1]] or takers[0][1] == giver):
            heappop(takers)
        if not takers or quotas[giver] < step or takers[0][0] >= seconds[giver] * (1.0 - 1e-9):
            return
        soonest, taker, _ = heappop(takers)
        quotas[giver] -= step
        quotas[taker] += step
        for d, each in ((giver, seconds_of(giver, quotas[giver])), (taker, soonest)):
            seconds[d] = each
            heappush(slowest, (-each, d))
            heappush(takers, (seconds_of(d, quotas[d] + step), d, quotas[d]))


class MicroBatchQuota(Lever):
    """Micro-batches per replica by what each replica can run."""

    name = "micro_batch_quota"
    asked = Asked.TUNING, 2

    def describe(self, before: Layout, after: Layout) -> str:
        """Quotas before and after."""
        old = [replica.num_micro_batches for replica in before.replicas]
        new = [replica.num_micro_batches for replica in after.replicas]
        if old == new:
            return ""
        return f"micro-batches per replica {', '.join(map(str, new))} (were {', '.join(map(str, old))})"
