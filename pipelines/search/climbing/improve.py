"""Finds priorities: forwards and backwards by turns, each pass in the order of the other's times.

This is forward-backward improvement from project scheduling (Tormos and Lova, Annals of Operations Research 102,
2001; Li and Willis, EJOR 56, 1992): a schedule is pushed to the right from its end, then to the left again, and the
time that one pass saves the next one keeps. Noise on the priorities between the passes leads out of the first fixed
point.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.dispatching.dispatch import list_schedule
from evenkeel.pipelines.search.tables import Floats, Stages, durations_of

# What a pass before the last may be longer than the worst that is of use, forth and back: without a memory limit much
# is made good by the next one.
_PATIENCE, _BACK_PATIENCE = 1.06, 1.08
_LIMITED_PATIENCE, _LIMITED_BACK_PATIENCE = 1.01, 1.03


class Ordering(NamedTuple):
    """A schedule, and what makes it.

    Attributes:
        starts: Start of each operation.
        makespan: When the last one ends.
        priorities: Of each operation.
        target: The makespan that they aim at; infinite for none.
    """

    starts: Floats
    makespan: float
    priorities: Floats
    target: float


@compiled
def first_priorities(stages: Stages) -> Floats:
    """Backward before forward before weights; older micro-batches first, and of one the later stages first."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    priorities = np.empty(kinds * block)
    for op in range(block):
        micro_batch, stage = divmod(op, num_stages)
        priorities[op] = 1e9 + 1e4 * micro_batch - stage
        priorities[block + op] = 1e4 * micro_batch
        if kinds == 3:
            priorities[2 * block + op] = 2e9 + 1e4 * micro_batch
    return priorities


@compiled
def improve(
    stages: Stages,
    priorities: Floats,
    target: float,
    limit: float,
    rounds: int,
    noise: float,
    generator: np.random.Generator,
    worst: float,
) -> Ordering:
    """The best of some rounds of forward-backward improvement.

    Args:
        stages: What to order.
        priorities: Where to begin.
        target: The makespan that the priorities aim at, if they are latest starts; else infinite.
        limit: Activation memory of a device, in which one micro-batch fits; infinite for no limit.
        rounds: Forward passes, at least one; there is one backward pass between two of them.
        noise: Standard deviation, in time, of what is added to the priorities of a backward pass.
        generator: Source of the noise.
        worst: What is longer is of no use: a pass ends when it is certain to be, and with it all, with an infinite
            makespan. Passes before the last may be longer by a few per cent.
    """
    durations = durations_of(stages)
    best = Ordering(priorities, np.inf, priorities, target)
    for turn in range(2 * rounds - 1):
        is_reverse = turn % 2 == 1
        # One call for both directions: each place that calls it is compiled anew.
        aim, give_up = target, worst
        if is_reverse:
            aim, give_up = np.inf, worst * (_BACK_PATIENCE if limit == np.inf else _LIMITED_BACK_PATIENCE)
        elif turn < 2 * rounds - 2:
            give_up = worst * (_PATIENCE if limit == np.inf else _LIMITED_PATIENCE)
        starts, makespan = list_schedule(stages, priorities, limit, aim, is_reverse, give_up)
        if makespan == np.inf:
            break
        if is_reverse:
            target = makespan
        elif makespan < best.makespan:
            best = Ordering(starts, makespan, priorities, target)
        priorities = -(starts + durations)
        if noise > 0 and not is_reverse:
            for op in range(priorities.shape[0]):
                priorities[op] += noise * generator.standard_normal()
    return best
