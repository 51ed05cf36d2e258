"""Pipeline schedules by name: each turns (stage, number of stages, micro-batches) into a stage's program.

A schedule is one function in ``SCHEDULES``. Sends never block, so any order in which each receive has its send earlier
in the peer's program is free of deadlock.
"""

from collections.abc import Callable, Sequence

from layouts.instructions import Instruction, Op, Program
from layouts.layout import Layout


def one_f_one_b(stage: int, num_stages: int, micro_batches: Sequence[int]) -> Program:
    """1F1B (PipeDream-flush, arXiv 2006.09503): warm up, then alternate one forward and one backward, then drain.

    Stage s holds at most ``num_stages - s`` live activations.
    """
    program: list[Instruction] = []

    def forward(micro_batch: int) -> None:
        if stage > 0:
            program.append(Instruction(Op.RECEIVE_ACTIVATION, micro_batch))
        program.append(Instruction(Op.FORWARD, micro_batch))
        if stage < num_stages - 1:
            program.append(Instruction(Op.SEND_ACTIVATION, micro_batch))

    def backward(micro_batch: int) -> None:
        if stage < num_stages - 1:
            program.append(Instruction(Op.RECEIVE_GRADIENT, micro_batch))
        program.append(Instruction(Op.BACKWARD, micro_batch))
        if stage > 0:
            program.append(Instruction(Op.SEND_GRADIENT, micro_batch))

    warm_up = min(num_stages - stage - 1, len(micro_batches))
    for micro_batch in micro_batches[:warm_up]:
        forward(micro_batch)
    for behind, micro_batch in enumerate(micro_batches[warm_up:]):
        forward(micro_batch)
        backward(micro_batches[behind])
    for micro_batch in micro_batches[len(micro_batches) - warm_up :]:
        backward(micro_batch)
    return (*program, Instruction(Op.REDUCE), Instruction(Op.STEP))


SCHEDULES: dict[str, Callable[[int, int, Sequence[int]], Program]] = {"1f1b": one_f_one_b}


def program_of(layout: Layout, replica: int, stage: int, micro_batches: Sequence[int] | None = None) -> Program:
    """The program of one stage of one replica under a layout.

    Args:
        layout: Layout.
        replica: Replica.
        stage: Stage of the replica.
        micro_batches: What the replica runs; None for all that the layout gives it. After a failure it is less.

    Raises:
        ValueError: The layout names an unknown schedule.
    """
    schedule = SCHEDULES.get(layout.schedule)
    if schedule is None:
        raise ValueError(f"unknown schedule {layout.schedule!r}; known: {', '.join(sorted(SCHEDULES))}")
    due = layout.micro_batches_of(replica) if micro_batches is None else micro_batches
    return schedule(stage, len(layout.replicas[replica].stages), due)
