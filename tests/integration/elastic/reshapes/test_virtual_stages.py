"""Ranks with several stages on gloo: plans that lead there and back, and deaths while it is so."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import pytest
import torch

from evenkeel.layouts.layout import Replica, Stage, uniform_layout
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.trainer_sdk.elastic.config import ModelConfig, OptimizerConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses
from tests.integration.elastic.fleet import Fleet, run_of

pytestmark = pytest.mark.integration

TOLERANCE = 1e-12
WORKLOAD = WorkloadConfig(num_micro_batches=6, token_budget=64, median_document_length=20.0, corpus_bytes=300_000)


def config(num_iterations: int) -> TrainingConfig:
    return TrainingConfig(
        num_iterations=num_iterations,
        dtype="float64",
        model=ModelConfig(num_layers=2, num_heads=4, head_dim=4, mlp_multiple=2, max_document_length=64),
        workload=WORKLOAD,
        optimizer=OptimizerConfig(max_gradient_norm=0.5),
    )


def virtual(ranks: tuple[int, ...], quota: int) -> Replica:
    """Four stages of one block, in turns on the ranks."""
    return Replica(
        stages=tuple(
            Stage(first_block=s, stop_block=s + 1, ranks=(ranks[s % len(ranks)],), shares=(1,)) for s in range(4)
        ),
        num_micro_batches=quota,
        orders=interleaved_orders(len(ranks), 4 // len(ranks), quota),
    )


UNIFORM = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=6)
VIRTUAL = replace(UNIFORM, replicas=(virtual((0, 1), 3), virtual((2, 3), 3)))
HALF = replace(UNIFORM, replicas=(UNIFORM.replicas[0], virtual((2, 3), 3)))


@lru_cache
def expected(num_iterations: int) -> list[float]:
    return [*islice(reference_losses(config(num_iterations)), num_iterations)]


def assert_as_if_nothing_happened(fleet: Fleet, num_iterations: int) -> None:
    """The losses are those of one process, and each micro-batch was run once, or kept from before."""
    job = config(num_iterations)
    assert fleet.losses == pytest.approx(expected(num_iterations), rel=TOLERANCE)
    assert not fleet.repeated, f"steps counted twice: {fleet.repeated}"
    dataset = Dataset(job, torch.device("cpu"))
    for iteration in range(num_iterations):
        documents = [dataset.documents(iteration, m) for m in range(WORKLOAD.num_micro_batches)]
        due = [(m, each.num_tokens, each.sum_of_squares) for m, each in enumerate(documents)]
        assert fleet.consumed(iteration) == due


def test_plans_lead_to_several_stages_a_rank_and_back_live_and_change_no_loss(
    start_fleet: Callable[..., Fleet],
) -> None:
    fleet = start_fleet(config(24), UNIFORM)
    layouts = [UNIFORM, VIRTUAL, HALF, UNIFORM]
    for number, layout in enumerate(layouts[1:], start=1):
        fleet.reached(max(fleet.samples, default=0) + 2)
        fleet.boundary(layout)
        fleet.pump_until(
            lambda epoch=number: any(s.place.epoch == epoch for of in fleet.samples.values() for s in of.values()),
            f"epoch {number}",
        )
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 24)
    for of_iteration in fleet.samples.values():
        (epoch,) = {sample.place.epoch for sample in of_iteration.values()}
        work = sum(sample.place.forward_flops_per_token for sample in of_iteration.values())
        assert work == pytest.approx(sum(s.place.forward_flops_per_token for s in fleet.samples[0].values()))
        for rank, sample in of_iteration.items():
            at = layouts[epoch].position_of(rank)
            assert (sample.place.replica, sample.place.stage) == (at.replica, at.stage)
            assert len(run_of(sample)) == len({batch.index for batch in run_of(sample)}) == 3


MOMENTS = {
    "while passes run": {
        1: {"operation": "forward", "nth": 3},
        2: {"operation": "backward", "nth": 4},
        0: {"operation": "backward", "nth": 6},
    },
    "while data is on the way": {
        0: {"operation": "wait:pipeline", "nth": 3},
        3: {"operation": "wait:gradient"},
        2: {"operation": "wait:vote"},
    },
}


@pytest.mark.parametrize("moments", MOMENTS)
def test_ranks_with_several_stages_die_and_come_back_and_no_loss_changes(
    moments: str, start_fleet: Callable[..., Fleet]
) -> None:
    fates = {
        rank: {"iteration": 3 + 4 * n, "epoch": n, **fate} for n, (rank, fate) in enumerate(MOMENTS[moments].items())
    }
    fleet = start_fleet(config(18), VIRTUAL, fates=fates)
    for rank, fate in fates.items():
        fleet.mourn(rank)
        assert fate["iteration"] - 1 in fleet.samples
        fleet.start_rank(rank, 1, None)
        fleet.recover(VIRTUAL)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 18)


def test_a_death_is_answered_by_a_layout_of_one_stage_a_rank_and_what_others_had_is_kept(
    start_fleet: Callable[..., Fleet],
) -> None:
    fleet = start_fleet(config(15), VIRTUAL, fates={3: {"iteration": 5, "operation": "wait:gradient"}})
    fleet.mourn(3)
    fleet.reduce_begun([0, 1, 2], 0, 5)
    alone = Stage(first_block=0, stop_block=4, ranks=(2,), shares=(1,))
    fleet.recover(replace(UNIFORM, replicas=(UNIFORM.replicas[0], Replica(stages=(alone,), num_micro_batches=3))))
    fleet.reached(8)
    fleet.boundary(replace(UNIFORM, replicas=(virtual((0, 1), 4), virtual((2,), 2))))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 15)
    assert fleet.num_executed(5) == 3, "only what the dead rank had runs again"
    assert {sample.place.epoch for sample in fleet.samples[14].values()} == {2}
