"""Gradients and losses of layouts whose replicas differ, against the single-process model."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Pipe

import pytest
import torch

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.layouts.programs.orders import LETTERS, Order, Turn
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.reference import reference_runtime
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.program.topology import WORLD, groups_of
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

pytestmark = pytest.mark.integration

CONFIG = TrainingConfig(
    dtype="float64",
    model=ModelConfig(num_layers=2, num_heads=4, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=5, token_budget=64, median_document_length=20.0, corpus_bytes=300_000),
)
NUM_ITERATIONS = 5


def stage(first: int, stop: int, ranks: tuple[int, ...], shares: tuple[int, ...] | None = None) -> Stage:
    return Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares or (1,) * len(ranks))


def layout(*replicas: tuple[int, tuple[Stage, ...]]) -> Layout:
    return Layout(
        num_blocks=4, replicas=tuple(Replica(stages=stages, num_micro_batches=quota) for quota, stages in replicas)
    )


LAYOUTS = {
    "different splits and quotas": layout(
        (4, (stage(0, 1, (0,)), stage(1, 4, (1,)))), (1, (stage(0, 3, (2,)), stage(3, 4, (3,))))
    ),
    "unequal widths beside equal ones": layout((3, (stage(0, 4, (0, 1), (2, 1)),)), (2, (stage(0, 4, (2, 3)),))),
    "two shards feed one and one feeds three": layout(
        (2, (stage(0, 2, (0, 1), (3, 1)), stage(2, 4, (2,)))),
        (3, (stage(0, 1, (3,)), stage(1, 4, (4, 5, 6), (2, 1, 1)))),
    ),
    "a replica without micro-batches": layout((5, (stage(0, 4, (0,)),)), (0, (stage(0, 4, (1, 2)),))),
    "a shard without a head": layout((5, (stage(0, 4, (0, 1), (15, 1)),))),
    "documents dealt out by a mix": replace(
        layout((3, (stage(0, 2, (0,)), stage(2, 4, (1,)))), (2, (stage(0, 4, (2, 3)),))),
        mix=Mix(counts=(3, 2), weights=(2, 3), token_cost=1.0, square_cost=0.01),
    ),
    "three stages beside one": layout(
        (4, (stage(0, 1, (0,)), stage(1, 3, (1, 2)), stage(3, 4, (3,)))), (1, (stage(0, 4, (4,)),))
    ),
}


def route(micro_batch: int, stage: int, replica: int) -> Route:
    return Route(micro_batch=micro_batch, stage=stage, replica=replica)


LAYOUTS |= {
    "both replicas host a stage of the other": replace(
        layout((3, (stage(0, 2, (0,)), stage(2, 4, (1,)))), (2, (stage(0, 2, (2,)), stage(2, 4, (3,))))),
        routes=(route(0, 0, 1), route(1, 1, 1), route(2, 0, 1), route(2, 1, 1), route(3, 1, 0), route(4, 0, 0)),
    ),
    "guests of another width between two stages at home": replace(
        layout(
            (4, (stage(0, 1, (0,)), stage(1, 3, (1,)), stage(3, 4, (2,)))),
            (1, (stage(0, 1, (3,)), stage(1, 3, (4, 5), (2, 1)), stage(3, 4, (6, 7)))),
        ),
        routes=(route(0, 1, 1), route(2, 1, 1), route(3, 2, 1), route(4, 0, 0)),
    ),
}


def virtual(first_rank: int, quota: int, num_cells: int, num_chunks: int, width: int) -> Replica:
    """Interleaved stages of one block each."""
    ranks = [tuple(first_rank + cell * width + t for t in range(width)) for cell in range(num_cells)]
    stages = tuple(stage(s, s + 1, ranks[s % num_cells]) for s in range(num_cells * num_chunks))
    orders = interleaved_orders(num_cells, num_chunks, quota)
    return Replica(stages=stages, num_micro_batches=quota, orders=orders)


def orders_of(*written: str) -> tuple[Order, ...]:
    """Orders whose turns are written as letter, place and stage."""
    return tuple(
        tuple(Turn(LETTERS[letter], int(place), int(number)) for letter, place, number in order.split())
        for order in written
    )


# There and back again: rank 0 has the first and the last stage, and weights' gradients come late (like ZB-V).
WAVE = orders_of(
    "F00 F10 F03 B03 F13 B13 W03 B00 W13 B10 W00 W10",
    "F01 F02 F11 F12 B02 B01 B12 W02 B11 W01 W11 W12",
)

# What ``evenkeel schedule`` finds within 50 evaluations for five micro-batches on three devices, where layers cost as
# 1, 6, 6 and 4.
SEARCHED = orders_of(
    "F00 F10 F20 F30 F40 F03 B03 F13 B13 F23 B23 W03 B00 W00 W13 W23 F33 B33 F43 B43 B10 W10 B20 W20 W33 W43 "
    "B30 W30 B40 W40",
    "F01 F11 F21 F31 F41 B01 W01 B11 B21 W11 W21 B31 B41 W31 W41",
    "F02 F12 F22 B02 B12 B22 F32 F42 W02 B32 B42 W12 W22 W32 W42",
)

LAYOUTS |= {
    "as the pipeline search found it": Layout(
        num_blocks=4,
        replicas=(
            Replica(
                stages=tuple(stage(s, s + 1, (rank,)) for s, rank in enumerate((0, 2, 1, 0))),
                num_micro_batches=5,
                orders=SEARCHED,
            ),
        ),
    ),
    "two stages a rank in turns": Layout(num_blocks=4, replicas=(virtual(0, 5, 2, 2, 1),)),
    "two stages on the same two shards beside one rank with all of four": Layout(
        num_blocks=4, replicas=(virtual(0, 3, 2, 2, 2), virtual(4, 2, 1, 4, 1))
    ),
    "stages that come back beside a plain pipeline": Layout(
        num_blocks=4,
        replicas=(
            Replica(
                stages=tuple(stage(s, s + 1, (rank,)) for s, rank in enumerate((0, 1, 1, 0))),
                num_micro_batches=2,
                orders=WAVE,
            ),
            Replica(stages=(stage(0, 3, (2,)), stage(3, 4, (3, 4))), num_micro_batches=3),
        ),
    ),
}


def _train(config: TrainingConfig, layout: Layout, rank: int, store_address: str) -> tuple[dict, list[float]]:
    """Some iterations of one rank: its reduced gradients of the first, and the losses of all."""
    torch.set_num_threads(1)
    waiter = Waiter(Mailbox(rank).interrupted)
    builder = GroupBuilder(rank, Rendezvous(store_address, config.job_id), device=torch.device("cpu"), waiter=waiter)
    specs = parameter_specs(config.model)
    builder.meet(0, layout.ranks, 0)
    groups = builder.add(0, groups_of(OwnershipMap(specs, layout)))
    phases = Phases(CpuDevice(), ProgressMark())
    state = initial_state(config, layout, rank)
    runtime = EpochRuntime(config, Dataset(config), rank, state, groups, phases)
    losses, first = [], {}
    for iteration in range(NUM_ITERATIONS):
        part = runtime.run_iteration(iteration)
        if iteration == 0:
            first = {name: gradient.numpy().copy() for name, gradient in runtime.sums.gradients().items()}
        losses.append(float(groups[WORLD].all_gather(torch.tensor([part], dtype=torch.float64)).sum()))
        runtime.step(1.0)
    return first, losses


def _run(config: TrainingConfig, layout: Layout, store_address: str) -> dict[int, tuple[dict, list[float]]]:
    children = {}
    for rank in layout.ranks:
        ours, theirs = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            try:
                theirs.send(_train(config, layout, rank, store_address))
            finally:
                os._exit(0)
        theirs.close()
        children[rank] = (pid, ours)
    results = {}
    for rank, (pid, ours) in children.items():
        results[rank] = ours.recv()
        os.waitpid(pid, 0)
    return results


# Replicas with orders of their own follow no schedule.
CASES = [
    (name, schedule)
    for name, each in LAYOUTS.items()
    for schedule in sorted(SCHEDULES)
    if schedule == each.schedule or not all(replica.orders for replica in each.replicas)
]


@pytest.mark.parametrize(("name", "schedule"), CASES)
def test_gradients_and_losses_of_an_unequal_layout_equal_the_single_process_model(
    name: str, schedule: str, start_store: Callable[[], str]
) -> None:
    chosen = replace(LAYOUTS[name], schedule=schedule)
    results = _run(CONFIG, chosen, start_store())
    _compare(CONFIG, chosen, results, gradient_tolerance=1e-11, loss_tolerance=1e-13)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_in_single_precision_only_rounding_differs(schedule: str, start_store: Callable[[], str]) -> None:
    config = replace(CONFIG, dtype="float32")
    chosen = replace(LAYOUTS["two shards feed one and one feeds three"], schedule=schedule)
    _compare(config, chosen, _run(config, chosen, start_store()), gradient_tolerance=2e-5, loss_tolerance=1e-6)


@lru_cache
def _whole(config: TrainingConfig) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The first iteration's gradients of the single-process model, and the losses of all."""
    runtime = reference_runtime(config)
    losses, first = [], {}
    for iteration in range(NUM_ITERATIONS):
        losses.append(runtime.run_iteration(iteration))
        if iteration == 0:
            first = {name: gradient.clone() for name, gradient in runtime.sums.gradients().items()}
        runtime.step(1.0)
    return first, losses


def _compare(
    config: TrainingConfig,
    layout: Layout,
    results: dict[int, tuple[dict, list[float]]],
    *,
    gradient_tolerance: float,
    loss_tolerance: float,
) -> None:
    whole, expected = _whole(config)
    ownership = OwnershipMap(parameter_specs(config.model), layout)
    replicated: dict[str, torch.Tensor] = {}
    for rank, (gradients, losses) in results.items():
        assert losses == pytest.approx(expected, rel=loss_tolerance)
        for name, held in ownership.held_by(rank).items():
            spec = ownership.specs[name]
            wanted = whole[name].narrow(spec.cut_axis, held.start, len(held))
            found = torch.from_numpy(gradients[name])
            scale = float(whole[name].abs().max())
            assert float((found - wanted).abs().max() if len(held) else 0.0) <= gradient_tolerance * scale, name
            if spec.axis is None:
                assert torch.equal(found, replicated.setdefault(name, found)), f"copies of {name} differ"
