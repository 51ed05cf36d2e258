"""Finds priorities: forwards and backwards by turns, each pass in the order of the other's times.

This is forward-backward improvement from project scheduling (Tormos and Lova, Annals of Operations Research 102,
2001; Li and Willis, EJOR 56, 1992): a schedule is pushed to the right from its end, then to the left again, and the
time that one pass saves the next one keeps. Noise on the priorities between the passes leads out of the first fixed
point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pipelines.search.budget import Budget
from pipelines.search.dispatch import Schedule, dispatch
from pipelines.search.network import Network


@dataclass(frozen=True, slots=True)
class Ordering:
    """A schedule, and the priorities and the target that make it."""

    schedule: Schedule
    priorities: list[float]
    target: float | None


def first_priorities(network: Network) -> list[float]:
    """Backward before forward before weights; older micro-batches first, and of one the later stages first."""
    num_stages, count = len(network.partition), network.num_micro_batches
    forward = [1e9 + 1e4 * m - s for m in range(count) for s in range(num_stages)]
    backward = [1e4 * m for m in range(count) for _ in range(num_stages)]
    weight = [2e9 + 1e4 * m for m in range(count) for _ in range(num_stages)] if network.is_split else []
    return forward + backward + weight


def improve(
    network: Network,
    priorities: Sequence[float],
    budget: Budget,
    *,
    rounds: int,
    target: float | None = None,
    limit: float | None = None,
    noise: float = 0.0,
    random: Random | None = None,
) -> Ordering:
    """The best of some rounds of forward-backward improvement.

    Args:
        network: What to order.
        priorities: Where to begin.
        budget: Charged for each schedule.
        rounds: Forward passes; there is one backward pass between two of them.
        target: The makespan that the priorities aim at, if they are latest starts.
        limit: Activation memory of a device.
        noise: Standard deviation, in time, of what is added to the priorities of a backward pass.
        random: Source of the noise.

    Raises:
        ValueError: One micro-batch does not fit into the limit.
    """
    best: Ordering | None = None
    now = list(priorities)
    for left in range(rounds - 1, -1, -1):
        schedule = dispatch(network, now, limit=limit, target=target)
        budget.charge()
        if best is None or schedule.makespan < best.schedule.makespan:
            best = Ordering(schedule, now, target)
        if not left or budget.spent >= 1:
            break
        late = [-(start + length) for start, length in zip(schedule.starts, network.durations, strict=True)]
        if noise and random is not None:
            late = [end + random.gauss(0.0, noise) for end in late]
        back = dispatch(network, late, limit=limit, is_reverse=True)
        target = back.makespan
        now = [-(start + length) for start, length in zip(back.starts, network.durations, strict=True)]
    assert best is not None
    return best
