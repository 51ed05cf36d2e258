"""Programs of a layout against the engine's rules for borders: sends never block; first in, first out."""

from collections import deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from layouts.instructions import Op
from layouts.layout import Layout
from layouts.schedules import SCHEDULES, program_of
from trainer_sdk.elastic.topology import borders_of

_SENDS = {Op.SEND_ACTIVATION: False, Op.SEND_GRADIENT: True}
_RECEIVES = {Op.RECEIVE_ACTIVATION: False, Op.RECEIVE_GRADIENT: True}


def _simulate(layout: Layout) -> dict[int, list[int]]:
    """Run all ranks until nobody can move; returns the micro-batches that each rank finished backward."""
    programs = {
        rank: deque(program_of(layout, position.replica, position.stage)) for rank, position in layout.positions()
    }
    borders = borders_of(layout)
    queues: dict[str, deque[int]] = {border.group_name: deque() for border in borders}
    assert len(queues) == len(borders), "two borders share a group"
    done: dict[int, list[int]] = {rank: [] for rank in programs}
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while program:
                instruction = program[0]
                if instruction.op in _RECEIVES:
                    (border,) = (
                        b for b in borders if b.receiver == rank and b.is_gradient == _RECEIVES[instruction.op]
                    )
                    if not queues[border.group_name]:
                        break
                    arrived = queues[border.group_name].popleft()
                    assert arrived == instruction.micro_batch, "tensors of two micro-batches were mixed up"
                for border in borders:
                    if border.sender == rank and _SENDS.get(instruction.op) == border.is_gradient:
                        queues[border.group_name].append(instruction.micro_batch)
                if instruction.op in (Op.BACKWARD, Op.BACKWARD_WEIGHT):
                    done[rank].append(instruction.micro_batch)
                program.popleft()
                moved = True
    stuck = {rank: program[0] for rank, program in programs.items() if program}
    assert not stuck, f"deadlock: {stuck}"
    assert not any(queues.values()), "sent and never received"
    return done


@given(data=st.data())
def test_no_layout_deadlocks_and_every_micro_batch_passes_every_stage_of_one_replica(
    data: st.DataObject, any_layout: st.SearchStrategy
) -> None:
    layout = replace(data.draw(any_layout), schedule=data.draw(st.sampled_from(sorted(SCHEDULES))))
    done = _simulate(layout)
    for rank, position in layout.positions():
        assert sorted(done[rank]) == list(layout.micro_batches_of(position.replica))
    everything = sorted(index for d in range(len(layout.replicas)) for index in layout.micro_batches_of(d))
    assert everything == list(range(layout.num_micro_batches))
