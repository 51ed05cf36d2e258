"""One order of all transfers of an iteration, for devices that may run only one communication at a time.

Groups on an accelerator share it: NCCL promises no progress to a group whose kernel waits behind another one's, so
ranks that ask their groups in different orders may wait for each other for ever. Here all ranks ask in the same order,
that in which transfers are sent when every pass takes equally long. It can always be kept: whatever a rank has received
before it sends was sent earlier, and so was whatever it has sent before. Whoever has the first transfer that is not
over can wait only for earlier ones, so it gets to that transfer, and so does its receiver.
"""

from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.execution import ARRIVES_AS, COMPUTES, RECEIVES, walk
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import program_of


class Sent(NamedTuple):
    """A transfer, as whoever sends it names it."""

    is_gradient: bool
    micro_batch: int
    stage: int


def transfer_order(layout: Layout, replica: int, micro_batches: Sequence[int] | None = None) -> dict[Sent, int]:
    """The place of each transfer in the order that the ranks of a replica share with whom they exchange tensors.

    Args:
        layout: Layout.
        replica: Replica.
        micro_batches: What the replica runs, all of it by itself; None for all that the layout gives it.
    """
    paths, alone = Paths(layout), micro_batches is not None
    together = {replica} if alone else _linked(layout, paths, replica)
    cells = [(d, stages) for d in sorted(together) for stages in layout.replicas[d].cells]
    cell_of = {(d, stage): cell for cell, (d, stages) in enumerate(cells) for stage in stages}

    def receiver_of(_: int, instruction: Instruction) -> int:
        stage = instruction.stage + ARRIVES_AS[instruction.op][1]
        return cell_of[replica if alone else paths.host(instruction.micro_batch, stage), stage]

    sent_at: dict[Sent, int] = {}
    clocks = [0] * len(cells)
    programs = [program_of(layout, d, stages[0], micro_batches) for d, stages in cells]
    for cell, instruction, _ in walk(programs, receiver_of):
        op, micro_batch, stage = instruction.op, instruction.micro_batch, instruction.stage
        if op in COMPUTES:
            clocks[cell] += 1
        elif op in RECEIVES:
            is_gradient = op is Op.RECEIVE_GRADIENT
            sent = Sent(is_gradient, micro_batch, stage + 1 if is_gradient else stage - 1)
            clocks[cell] = max(clocks[cell], sent_at[sent])
        elif op in ARRIVES_AS:
            sent_at[Sent(op is Op.SEND_GRADIENT, micro_batch, stage)] = clocks[cell]
    return {sent: place for place, sent in enumerate(sorted(sent_at, key=lambda sent: (sent_at[sent], sent)))}


def _linked(layout: Layout, paths: Paths, replica: int) -> set[int]:
    """The replica, those whose micro-batches meet it on their way, those whose meet these, and so on."""
    found = {replica}
    meetings = [{paths.home(route.micro_batch), route.replica} for route in layout.routes]
    while more := {d for meeting in meetings if meeting & found for d in meeting} - found:
        found |= more
    return found
