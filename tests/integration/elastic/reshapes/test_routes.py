"""Routed micro-batches on gloo: plans that route, and deaths of hosts and homes while routes are in force."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import pytest
import torch

from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.trainer_sdk.elastic.config import ModelConfig, OptimizerConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses
from tests.integration.elastic.fleet import Fleet, kept_of, run_of

pytestmark = pytest.mark.integration

TOLERANCE = 1e-12
NUM_STAGES = 2
WORKLOAD = WorkloadConfig(num_micro_batches=6, token_budget=64, median_document_length=20.0, corpus_bytes=300_000)
UNIFORM = uniform_layout(num_blocks=4, tensor=1, pipeline=NUM_STAGES, data=2, num_micro_batches=6)
# Rank 1 gives two of three stage 1s away, rank 2 one of its stage 0s; rank 3 runs five of six.
ROUTED = replace(
    UNIFORM,
    routes=tuple(Route(micro_batch=m, stage=s, replica=d) for m, s, d in ((0, 1, 1), (2, 1, 1), (4, 0, 0))),
)


def config(num_iterations: int) -> TrainingConfig:
    return TrainingConfig(
        num_iterations=num_iterations,
        dtype="float64",
        model=ModelConfig(num_layers=2, num_heads=4, head_dim=4, mlp_multiple=2, max_document_length=64),
        workload=WORKLOAD,
        optimizer=OptimizerConfig(max_gradient_norm=0.5),
    )


@lru_cache
def expected(num_iterations: int) -> list[float]:
    return [*islice(reference_losses(config(num_iterations)), num_iterations)]


def assert_as_if_nothing_happened(fleet: Fleet, num_iterations: int) -> None:
    """The losses are those of one process, and each stage of each micro-batch was run once, or kept from before."""
    job = config(num_iterations)
    assert fleet.losses == pytest.approx(expected(num_iterations), rel=TOLERANCE)
    assert not fleet.repeated, f"steps counted twice: {fleet.repeated}"
    dataset = Dataset(job, torch.device("cpu"))
    for iteration in range(num_iterations):
        due = [(m, dataset.documents(iteration, m).num_tokens) for m in range(WORKLOAD.num_micro_batches)]
        (kept,) = {tuple(_named(kept_of(s))) for s in fleet.samples[iteration].values()}
        for stage in range(NUM_STAGES):
            samples = [s for s in fleet.samples[iteration].values() if s.place.stage == stage]
            run = [each for sample in samples for each in _named(run_of(sample))]
            assert sorted([*run, *kept]) == due, f"stage {stage} in iteration {iteration}"


def _named(batches: object) -> Iterator[tuple[int, int]]:
    yield from ((batch.index, batch.tokens) for batch in batches)


def assert_routes_were_followed(fleet: Fleet, layout: Layout, iteration: int) -> None:
    paths = Paths(layout)
    for rank, sample in fleet.samples[iteration].items():
        at = layout.position_of(rank)
        assert sorted(index for index, _ in _named(run_of(sample))) == list(paths.hosted(at.replica, at.stage))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_plan_that_routes_and_one_that_ends_it_are_applied_live_and_change_no_loss(
    schedule: str, start_fleet: Callable[..., Fleet]
) -> None:
    routed = replace(ROUTED, schedule=schedule)
    fleet = start_fleet(config(17), UNIFORM)
    fleet.reached(3)
    fleet.boundary(routed)
    fleet.pump_until(lambda: any(s.place.epoch == 1 for of in fleet.samples.values() for s in of.values()), "epoch 1")
    fleet.reached(max(fleet.samples) + 2)
    fleet.boundary(UNIFORM)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 17)
    for iteration, of_iteration in fleet.samples.items():
        (epoch,) = {sample.place.epoch for sample in of_iteration.values()}
        assert_routes_were_followed(fleet, (UNIFORM, routed, UNIFORM)[epoch], iteration)
    assert {sample.place.epoch for sample in fleet.samples[16].values()} == {2}


# Rank 1 is the home of guests of rank 3, rank 2 of one of rank 0.
MOMENTS = {
    "while passes run": {
        3: {"operation": "forward", "nth": 2},
        1: {"operation": "backward"},
        0: {"operation": "backward", "nth": 3},
        2: {"operation": "wait:pipeline", "nth": 2},
    },
    "while data is on the way": {
        0: {"operation": "wait:pipeline", "nth": 3},
        3: {"operation": "wait:pipeline", "nth": 4},
        2: {"operation": "wait:gradient"},
        1: {"operation": "wait:vote"},
    },
}


@pytest.mark.parametrize("moments", MOMENTS)
def test_hosts_and_homes_that_die_change_no_loss_and_routes_go_on_after_it(
    moments: str, start_fleet: Callable[..., Fleet]
) -> None:
    chosen = MOMENTS[moments]
    fates = {rank: {"iteration": 3 + 4 * n, "epoch": n, **fate} for n, (rank, fate) in enumerate(chosen.items())}
    fleet = start_fleet(config(22), ROUTED, fates=fates)
    for rank, fate in fates.items():
        fleet.mourn(rank)
        assert fate["iteration"] - 1 in fleet.samples
        fleet.start_rank(rank, 1, None)
        fleet.recover(ROUTED)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 22)
    for iteration in (0, 2, 5, 9, 13, 17, 21):
        assert_routes_were_followed(fleet, ROUTED, iteration)


def test_what_the_host_of_a_guest_had_is_run_again_alone_and_the_rest_is_kept(
    start_fleet: Callable[..., Fleet],
) -> None:
    # Rank 3 runs 3, 0, 4, 5, 2 in turns; its sums are gone with it. Rank 1 is through with micro-batch 1 by then.
    fleet = start_fleet(config(9), ROUTED, fates={3: {"iteration": 5, "operation": "wait:gradient"}})
    fleet.mourn(3)
    fleet.reduce_begun([0, 1, 2], 0, 5)
    alone = replace(UNIFORM, replicas=(UNIFORM.replicas[0], Replica(stages=(whole(2),), num_micro_batches=3)))
    fleet.recover(alone)
    fleet.finish()

    losses = fleet.losses
    assert losses == pytest.approx(expected(9), rel=TOLERANCE)
    assert {m for s in fleet.samples[5].values() for m, _ in _named(kept_of(s))} == {1}
    assert {m for s in fleet.samples[5].values() for m, _ in _named(run_of(s))} == {0, 2, 3, 4, 5}


def whole(rank: int) -> Stage:
    return Stage(first_block=0, stop_block=4, ranks=(rank,), shares=(1,))
