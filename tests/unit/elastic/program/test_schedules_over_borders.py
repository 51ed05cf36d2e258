"""Programs of a layout against the engine's rules for borders: sends never block; first in, first out."""

from collections import deque
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import SCHEDULES, program_of
from evenkeel.trainer_sdk.elastic.program.topology import Border, borders_of
from tests.unit.layouts.strategies import ordered_layouts, routed_layouts

_SENDS = {Op.SEND_ACTIVATION: False, Op.SEND_GRADIENT: True}
_RECEIVES = {Op.RECEIVE_ACTIVATION: False, Op.RECEIVE_GRADIENT: True}


def _simulate(layout: Layout) -> dict[int, list[int]]:
    """Run all ranks until nobody can move; returns the micro-batches that each rank finished, once per stage."""
    programs = {
        rank: deque(program_of(layout, position.replica, position.stage)) for rank, position in layout.positions()
    }
    borders, paths = borders_of(layout), Paths(layout)

    def is_for(border: Border, rank: int, instruction: Instruction) -> bool:
        """Whether what an instruction of a rank moves passes a border, as the engine looks it up."""
        micro_batch, s = instruction.micro_batch, instruction.stage
        step = -1 if (border.receiver == rank) != border.is_gradient else 1
        if border.home != paths.home(micro_batch) or s + step < 0 or border.stage != min(s, s + step):
            return False
        other = border.sender_replica if border.receiver == rank else border.receiver_replica
        return other == paths.host(micro_batch, s + step)

    queues: dict[str, deque[tuple[int, int]]] = {border.group_name: deque() for border in borders}
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
                        b
                        for b in borders
                        if b.receiver == rank
                        and b.is_gradient == _RECEIVES[instruction.op]
                        and is_for(b, rank, instruction)
                    )
                    if not queues[border.group_name]:
                        break
                    arrived = queues[border.group_name].popleft()
                    step = 1 if border.is_gradient else -1
                    sent = instruction.micro_batch, instruction.stage + step
                    assert arrived == sent, "tensors of two micro-batches were mixed up"
                for border in borders:
                    sends = border.sender == rank and _SENDS.get(instruction.op) == border.is_gradient
                    if sends and is_for(border, rank, instruction):
                        queues[border.group_name].append((instruction.micro_batch, instruction.stage))
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
    layout = replace(data.draw(any_layout | ordered_layouts()), schedule=data.draw(st.sampled_from(sorted(SCHEDULES))))
    done = _simulate(layout)
    for rank, position in layout.positions():
        num_stages = len(layout.cell_at(position))
        assert sorted(done[rank]) == sorted([*layout.micro_batches_of(position.replica)] * num_stages)
    everything = sorted(index for d in range(len(layout.replicas)) for index in layout.micro_batches_of(d))
    assert everything == list(range(layout.num_micro_batches))


@settings(max_examples=150)
@given(layout=routed_layouts())
def test_no_routes_deadlock_or_mix_up_tensors_and_every_stage_of_every_micro_batch_is_run_once(layout: Layout) -> None:
    done, paths = _simulate(layout), Paths(layout)
    for rank, position in layout.positions():
        assert len(done[rank]) == len(set(done[rank]))
        assert sorted(done[rank]) == list(paths.hosted(position.replica, position.stage))
    for d, replica in enumerate(layout.replicas):
        for micro_batch in layout.micro_batches_of(d):
            for s in range(len(replica.stages)):
                hosts = {
                    place.replica
                    for rank, place in layout.positions()
                    if place.stage == s and micro_batch in done[rank]
                }
                assert hosts == {paths.host(micro_batch, s)}
