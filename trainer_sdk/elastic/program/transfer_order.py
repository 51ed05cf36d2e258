"""One order of all transfers of an iteration, for devices that may run only one communication at a time.

Groups on an accelerator share it: NCCL promises no progress to a group whose kernel waits behind another one's, so
ranks that ask their groups in different orders may wait for each other for ever. Here all ranks ask in the same order,
that in which transfers are sent when every pass takes equally long. It can always be kept: whatever a rank has received
before it sends was sent earlier, and so was whatever it has sent before. Whoever has the first transfer that is not
over can wait only for earlier ones, so it gets to that transfer, and so does its receiver.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import program_of

_SENDS = {Op.SEND_ACTIVATION: False, Op.SEND_GRADIENT: True}
_RECEIVES = {Op.RECEIVE_ACTIVATION: False, Op.RECEIVE_GRADIENT: True}
_NO_PASSES = frozenset((Op.REDUCE, Op.STEP))


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
    together = _linked(layout, replica) if micro_batches is None else {replica}
    programs = [
        program_of(layout, d, stages[0], micro_batches) for d in sorted(together) for stages in layout.replicas[d].cells
    ]
    sent_at: dict[Sent, int] = {}
    waiting: dict[Sent, int] = {}
    clocks, at = [0] * len(programs), [0] * len(programs)
    ready = deque(range(len(programs)))
    while ready:
        cell = ready.popleft()
        while at[cell] < len(programs[cell]):
            instruction = programs[cell][at[cell]]
            op, micro_batch, stage = instruction.op, instruction.micro_batch, instruction.stage
            if op in _RECEIVES:
                awaited = Sent(_RECEIVES[op], micro_batch, stage + 1 if _RECEIVES[op] else stage - 1)
                if awaited not in sent_at:
                    waiting[awaited] = cell
                    break
                clocks[cell] = max(clocks[cell], sent_at[awaited])
            elif op in _SENDS:
                sent = Sent(_SENDS[op], micro_batch, stage)
                sent_at[sent] = clocks[cell]
                if sent in waiting:
                    ready.append(waiting.pop(sent))
            elif op not in _NO_PASSES:
                clocks[cell] += 1
            at[cell] += 1
    return {sent: place for place, sent in enumerate(sorted(sent_at, key=lambda sent: (sent_at[sent], sent)))}


def _linked(layout: Layout, replica: int) -> set[int]:
    """The replica, those whose micro-batches meet it on their way, those whose meet these, and so on."""
    paths, found = Paths(layout), {replica}
    meetings = [{paths.home(route.micro_batch), route.replica} for route in layout.routes]
    while more := {d for meeting in meetings if meeting & found for d in meeting} - found:
        found |= more
    return found
