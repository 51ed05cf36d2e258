"""Pipeline schedules by name: each turns (stage, number of stages, micro-batches) into a stage's program.

A schedule is one function in ``SCHEDULES``. Sends never block, so any order in which each receive has its send earlier
in the peer's program is free of deadlock.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.instructions import Instruction, Op, Program
from evenkeel.layouts.programs.orders import order_programs
from evenkeel.layouts.programs.paths import Paths


def _program(passes: Iterable[tuple[Op, int]], stage: int, num_stages: int) -> Program:
    """Passes of a stage on micro-batches, with the transfers that belong to each."""
    is_first, is_last = stage == 0, stage == num_stages - 1
    program: list[Instruction] = []
    for op, micro_batch in passes:
        is_forward, is_backward = op is Op.FORWARD, op in (Op.BACKWARD, Op.BACKWARD_INPUT)
        if is_forward and not is_first:
            program.append(Instruction(Op.RECEIVE_ACTIVATION, micro_batch, stage))
        elif is_backward and not is_last:
            program.append(Instruction(Op.RECEIVE_GRADIENT, micro_batch, stage))
        program.append(Instruction(op, micro_batch, stage))
        if is_forward and not is_last:
            program.append(Instruction(Op.SEND_ACTIVATION, micro_batch, stage))
        elif is_backward and not is_first:
            program.append(Instruction(Op.SEND_GRADIENT, micro_batch, stage))
    return (*program, Instruction(Op.REDUCE), Instruction(Op.STEP))


def one_f_one_b(stage: int, num_stages: int, micro_batches: Sequence[int]) -> Program:
    """1F1B (PipeDream-flush, arXiv 2006.09503): warm up, then alternate one forward and one backward, then drain.

    Stage s holds at most ``num_stages - s`` live activations.
    """
    return _program(_alternating(stage, num_stages, micro_batches, Op.BACKWARD), stage, num_stages)


def zero_bubble_h1(stage: int, num_stages: int, micro_batches: Sequence[int]) -> Program:
    """ZB-H1 (Zero Bubble, arXiv 2401.10241): 1F1B whose weights' part is put off and fills the gaps of the drain.

    Stage s does the weights' part s micro-batches behind the input's, so that every stage holds at most ``num_stages``
    live activations, counted until the weights' part: what the first stage holds under 1F1B.
    """
    passes, late = list[tuple[Op, int]](), deque[int]()
    for op, micro_batch in _alternating(stage, num_stages, micro_batches, Op.BACKWARD_INPUT):
        passes.append((op, micro_batch))
        if op is Op.BACKWARD_INPUT:
            late.append(micro_batch)
            if len(late) > stage:
                passes.append((Op.BACKWARD_WEIGHT, late.popleft()))
    passes += [(Op.BACKWARD_WEIGHT, micro_batch) for micro_batch in late]
    return _program(passes, stage, num_stages)


def _alternating(stage: int, num_stages: int, micro_batches: Sequence[int], backward: Op) -> Iterator[tuple[Op, int]]:
    """Forwards until the first gradient can be there, then one backward and one forward in turn, and what is left."""
    ahead = iter(micro_batches)
    yield from [(Op.FORWARD, micro_batch) for micro_batch in islice(ahead, num_stages - stage - 1)]
    for micro_batch in micro_batches:
        yield from [(Op.FORWARD, further) for further in islice(ahead, 1)]
        yield backward, micro_batch


SCHEDULES: dict[str, Callable[[int, int, Sequence[int]], Program]] = {"1f1b": one_f_one_b, "zb-h1": zero_bubble_h1}

SPLIT_BACKWARD = frozenset({"zb-h1"})
"""Schedules that compute the gradients of a stage's input and of its weights apart."""


@lru_cache(maxsize=256)
def stage_programs(schedule: str, num_stages: int, num_micro_batches: int) -> tuple[Program, ...]:
    """Programs of all stages of a replica under a schedule; its micro-batches are counted from 0."""
    write = SCHEDULES[schedule]
    return tuple([write(s, num_stages, range(num_micro_batches)) for s in range(num_stages)])


def schedules_named(value: object) -> tuple[str, ...]:
    """Schedules as a person writes them in a job or state file: true for all, or a list of names.

    Raises:
        ValueError: Something else, or a name that nobody knows.
    """
    if value is True:
        return tuple(sorted(SCHEDULES))
    if value is False:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) and name in SCHEDULES for name in value):
        raise ValueError(f"schedules is {json.dumps(value)[:80]}: true, or a list of {', '.join(sorted(SCHEDULES))}")
    return tuple(dict.fromkeys(value))


def live_activations(schedule: str, stage: int, num_stages: int, num_micro_batches: int) -> int:
    """How many micro-batches' activations a stage holds at a time, at most.

    Args:
        schedule: Name of the schedule.
        stage: Stage.
        num_stages: Stages of its replica.
        num_micro_batches: The replica's quota.
    """
    most = num_stages if schedule in SPLIT_BACKWARD else num_stages - stage
    return min(most, num_micro_batches)


def common_scale(layout: Layout) -> int:
    """Points on the scale on which all replicas' schedules lie: each quota divides it."""
    return math.lcm(*[replica.num_micro_batches for replica in layout.replicas if replica.num_micro_batches])


def moments_of(layout: Layout, home: int, place: int, stage: int, scale: int) -> tuple[int, int, int]:
    """When forward, backward and weights' part of a micro-batch are due at a stage, on a layout's common scale.

    Args:
        layout: Layout.
        home: Replica whose quota the micro-batch belongs to.
        place: Which one of the quota it is.
        stage: Stage.
        scale: :func:`common_scale` of the layout.
    """
    replica, num_replicas = layout.replicas[home], len(layout.replicas)
    one = scale // replica.num_micro_batches
    last, step = len(replica.stages) - 1, one * num_replicas
    at = place * step + home * one  # replicas of the same pace take turns
    return at, at + (last - stage) * step, at + last * step


def routed_program(layout: Layout, paths: Paths, replica: int, stage: int) -> Program:
    """The program of a stage of a layout with routes: the layout's schedule over its own micro-batches and its guests.

    Each replica's schedule is laid on one scale, the iteration from 0 to 1: forward k of quota q at k / q at all
    stages, backward as many steps later as there are stages after it, weights' part as many more as there are before
    it. That is the schedule's own order for own micro-batches, and guests stand where their home has them. No two
    stages can wait for each other: whatever an instruction needs lies earlier on the scale, or at the same place in an
    earlier stage, so all programs and transfers have one order. Micro-batches of one home pass a border in order.

    Args:
        layout: Layout.
        paths: Its paths.
        replica: Replica.
        stage: Stage of the replica.
    """
    scale, split = common_scale(layout), layout.schedule in SPLIT_BACKWARD
    due: list[tuple[int, int, int, int]] = []
    for micro_batch in paths.hosted(replica, stage):
        home = paths.home(micro_batch)
        place = micro_batch - layout.micro_batches_of(home).start
        moments = moments_of(layout, home, place, stage, scale)
        due += [(at, part, home, micro_batch) for part, at in enumerate(moments) if split or part < 2]
    ops = (Op.FORWARD, Op.BACKWARD_INPUT if split else Op.BACKWARD, Op.BACKWARD_WEIGHT)
    passes = [(ops[part], micro_batch) for _, part, _, micro_batch in sorted(due)]
    return _program(passes, stage, len(layout.replicas[replica].stages))


def most_live(program: Program) -> int:
    """How many micro-batches' activations a program holds at a time, at most."""
    live = most = 0
    for instruction in program:
        if instruction.op is Op.FORWARD:
            live += 1
            most = max(most, live)
        elif instruction.op is Op.BACKWARD or instruction.op is Op.BACKWARD_WEIGHT:
            live -= 1
    return most


def program_of(layout: Layout, replica: int, stage: int, micro_batches: Sequence[int] | None = None) -> Program:
    """The program of one stage of one replica under a layout, with all stages that the same ranks hold.

    Args:
        layout: Layout.
        replica: Replica.
        stage: Stage of the replica; of several that the same ranks hold, any.
        micro_batches: What the replica runs, all of it by itself; None for all that the layout gives it, routes
            included. After a failure it is less.

    Raises:
        ValueError: The layout names an unknown schedule.
    """
    schedule = SCHEDULES.get(layout.schedule)
    if schedule is None:
        raise ValueError(f"unknown schedule {layout.schedule!r}; known: {', '.join(sorted(SCHEDULES))}")
    if layout.routes and micro_batches is None:
        return routed_program(layout, Paths(layout), replica, stage)
    due = layout.micro_batches_of(replica) if micro_batches is None else micro_batches
    one = layout.replicas[replica]
    if one.orders:
        cell = next(number for number, stages in enumerate(one.cells) if stage in stages)
        return order_programs(one.orders, one.cells, due)[cell]
    return schedule(stage, len(layout.replicas[replica].stages), due)
