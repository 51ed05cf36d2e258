"""The engine's own iterations and votes, recorded rank by rank, against groups as strict as groups may be."""

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.program.topology import groups_of
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import empty_state
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec
from evenkeel.trainer_sdk.groups.waiting import Waiter
from tests.unit.elastic.rendezvous import Ask, Await, RecordedBackend, RecordedGroup, Trace, Vote, play
from tests.unit.layouts.strategies import routed_layouts

VOTE_WIDTH = 4
dataset_of = lru_cache(Dataset)


def assert_nobody_waits_for_ever(
    config: TrainingConfig, layout: Layout, salvaged: SalvagePlan | None = None, *, accelerator: bool
) -> None:
    """Record two iterations of every rank, the first of which may be the rest of an interrupted one.

    Accelerators do one operation at a time, which is the least that NCCL promises to several groups on one of them.
    """
    workload = replace(config.workload, num_micro_batches=layout.num_micro_batches)
    model = replace(config.model, num_layers=layout.num_blocks - 2)
    config = replace(config, workload=workload, model=model, vote_width=VOTE_WIDTH)
    specs = groups_of(OwnershipMap(parameter_specs(model), layout), (), VOTE_WIDTH)
    specs = (*specs, *copies_of(config, 0).groups_of(layout))
    traces = {rank: record(config, layout, specs, rank, salvaged, accelerator) for rank in layout.ranks}
    play(traces, {spec.name: spec.ranks for spec in specs}, takes_turns=accelerator)


def copies_of(config: TrainingConfig, rank: int) -> PeerCopies:
    return PeerCopies(config, rank)


def record(
    config: TrainingConfig,
    layout: Layout,
    specs: tuple[GroupSpec, ...],
    rank: int,
    salvaged: SalvagePlan | None,
    accelerator: bool,
) -> Trace:
    trace: Trace = []
    groups = {}
    for spec in specs:
        if rank in spec.ranks:
            backend = RecordedBackend(spec.name, trace)
            groups[spec.name] = RecordedGroup(spec.name, spec.ranks, rank, backend, Waiter(lambda: False))
            groups[spec.name].accelerator = accelerator
    ownership = OwnershipMap(parameter_specs(config.model), layout)
    state = empty_state(config, ownership, rank, epoch=0, steps_applied=0)
    for parameter in state.parameters.values():
        for tensor in parameter:
            tensor.zero_()
    phases = Phases(CpuDevice(), ProgressMark())
    runtime = EpochRuntime(config, dataset_of(config), rank, state, groups, phases, None, salvaged)
    copies = copies_of(config, rank)
    copies.enter(groups, state)
    if salvaged is not None:
        runtime.sums.begin(salvaged.iteration)
    for iteration in range(2):
        runtime.run_iteration(iteration)
        runtime.vote.gradient_norm(1.0)
        copies.finish()
        trace.append(Vote())
        runtime.vote.hold(0, 0.0, 1.0)
        runtime.step(1.0)
        copies.voted()
        if iteration == 0:
            copies.stepped(state)
    return trace


@settings(max_examples=10, deadline=None)
@given(data=st.data(), accelerator=st.booleans())
def test_in_no_layout_do_ranks_wait_in_a_circle(
    data: st.DataObject, accelerator: bool, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = replace(data.draw(any_layout), schedule=data.draw(st.sampled_from(sorted(SCHEDULES))))
    assert_nobody_waits_for_ever(small_config, layout, accelerator=accelerator)


@settings(max_examples=10, deadline=None)
@given(
    layout=routed_layouts(max_stages=4, max_replicas=3, max_quota=4).filter(lambda layout: layout.num_blocks > 2),
    accelerator=st.booleans(),
)
def test_in_no_layout_with_routes_do_ranks_wait_in_a_circle(
    layout: Layout, accelerator: bool, small_config: TrainingConfig
) -> None:
    assert_nobody_waits_for_ever(small_config, layout, accelerator=accelerator)


@settings(max_examples=10, deadline=None)
@given(data=st.data(), accelerator=st.booleans())
def test_what_is_left_of_an_iteration_lets_nobody_wait_for_ever(
    data: st.DataObject, accelerator: bool, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = replace(data.draw(any_layout), schedule=data.draw(st.sampled_from(sorted(SCHEDULES))))
    again = sorted(data.draw(st.sets(st.sampled_from(range(layout.num_micro_batches)))))
    kept = tuple(sorted({*range(layout.num_micro_batches)} - {*again}))
    rest = SalvagePlan(
        iteration=0,
        moves=(),
        keeps_any=bool(kept),
        num_moved=0,
        gaps={},
        again=tuple(again),
        losses=dict.fromkeys(kept, 0.0),
        mix=layout.mix,
    )
    assert_nobody_waits_for_ever(small_config, layout, rest, accelerator=accelerator)


GROUPS = {"a": (0, 1), "b": (0, 1)}


def test_a_circle_is_found() -> None:
    first: Trace = [Ask("a", "x"), Await("a", 0), Ask("b", "x"), Await("b", 0)]
    second: Trace = [Ask("b", "x"), Await("b", 0), Ask("a", "x"), Await("a", 0)]
    with pytest.raises(AssertionError, match="wait for ever"):
        play({0: first, 1: second}, GROUPS)
    ahead: Trace = [Ask("a", "x"), Ask("b", "x"), Await("b", 0), Await("a", 0)]
    play({0: ahead, 1: second}, GROUPS)
    with pytest.raises(AssertionError, match="wait for ever"):
        play({0: ahead, 1: second}, GROUPS, takes_turns=True)


def test_operations_that_do_not_fit_or_are_left_behind_are_found() -> None:
    one: Trace = [Ask("a", "x"), Await("a", 0), Vote()]
    with pytest.raises(AssertionError, match="different things"):
        play({0: one, 1: [Ask("a", "y"), Await("a", 0)]}, GROUPS)
    with pytest.raises(AssertionError, match="on their way"):
        play({0: one, 1: [Ask("a", "x"), Vote(), Await("a", 0)]}, GROUPS)
