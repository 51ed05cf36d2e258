"""One replica, so every rank is the only holder of something: what a death costs with copies, with disk, and without."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from layouts.layout import Layout, Replica, Stage, uniform_layout
from services.scheduler.adapters.rank_client import state_from_proto
from services.scheduler.dispatch.agreement import NothingLeftError, recovery_decision
from trainer_sdk.control.state import Commit, RankPhase, StandIn, state_to_proto
from trainer_sdk.elastic.checkpoint_folder import MANIFEST, CheckpointFolder
from trainer_sdk.elastic.config import (
    CheckpointConfig,
    CopiesConfig,
    ModelConfig,
    TrainingConfig,
    WorkloadConfig,
)
from trainer_sdk.elastic.model import model_spec_of
from trainer_sdk.elastic.reference import reference_losses

pytestmark = pytest.mark.integration

BASE = TrainingConfig(
    dtype="float64",
    num_iterations=40,
    model=ModelConfig(num_layers=2, num_heads=6, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=20.0, corpus_bytes=300_000),
)
TOLERANCE = 1e-12
FOUR = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=4)


@lru_cache
def expected(num_iterations: int) -> list[float]:
    return reference_losses(BASE, num_iterations)


def with_copies(
    every: int, *, num_iterations: int = 40, directory: Path | None = None, each: int = 5
) -> TrainingConfig:
    checkpoint = CheckpointConfig(directory=str(directory or ""), every_iterations=each, keep=2)
    return replace(
        BASE, num_iterations=num_iterations, copies=CopiesConfig(every_iterations=every), checkpoint=checkpoint
    )


def without(*dead: int) -> Layout:
    """The four ranks less some; a stage that loses both goes to its neighbour."""
    kept = [tuple(rank for rank in stage.ranks if rank not in dead) for stage in FOUR.replicas[0].stages]
    borders = [(stage.first_block, stage.stop_block) for stage in FOUR.replicas[0].stages]
    alive = [(ranks, border) for ranks, border in zip(kept, borders, strict=True) if ranks]
    if len(alive) == 1:
        alive = [(alive[0][0], (0, 4))]
    stages = tuple(
        Stage(first_block=first, stop_block=stop, ranks=ranks, shares=(1,) * len(ranks))
        for ranks, (first, stop) in alive
    )
    return Layout(num_blocks=4, replicas=(Replica(stages=stages, num_micro_batches=4),))


def recover(fleet, to_layout: Layout, layouts: dict[int, Layout]) -> Commit:
    """What the scheduler does with the ranks' answers."""
    reshape, states = fleet.prepare_recovery(to_layout)
    answers = {rank: state_from_proto(state_to_proto(state)) for rank, state in states.items()}
    decision = recovery_decision(
        answers, layouts=layouts, to_layout=to_layout, model=model_spec_of({"model": {"num_layers": 2, "num_heads": 6}})
    )
    commit = Commit(
        reshape=reshape,
        from_epoch=decision.from_epoch,
        from_layout=decision.from_layout,
        sources=decision.sources,
        steps_applied=decision.steps_applied,
        stand_ins=tuple(StandIn(owner=one.owner, keeper=one.keeper) for one in decision.stand_ins),
        from_checkpoint=decision.from_checkpoint,
    )
    fleet._ask(sorted(states), "commit", commit)
    fleet.layout = to_layout
    return commit


def final_losses(fleet) -> list[float]:
    """Loss of each iteration as it counts in the end: a roll back leaves samples of steps that were run again."""
    losses = []
    for iteration in range(len(fleet.samples)):
        samples = [sample for sample in fleet.samples[iteration].values() if sample.HasField("loss")]
        newest = max(sample.epoch for sample in samples)
        values = {sample.loss for sample in samples if sample.epoch == newest}
        assert len(values) == 1, f"ranks disagree on iteration {iteration}: {values}"
        losses.append(values.pop())
    return losses


def assert_as_if_nothing_happened(losses: list[float], num_iterations: int, first: int = 0) -> None:
    assert len(losses) == num_iterations - first
    reference = expected(num_iterations)[first:]
    worst = max(abs(a - b) / b for a, b in zip(losses, reference, strict=True))
    assert worst < TOLERANCE, f"worst relative difference {worst}"


@pytest.mark.parametrize("dead", FOUR.ranks)
def test_the_only_holder_of_a_shard_dies_and_training_goes_on_from_its_peers_copy(
    start_fleet: Callable, dead: int
) -> None:
    fleet = start_fleet(with_copies(1), FOUR)
    fleet.reached(4 + dead)
    fleet.kill(dead)
    commit = recover(fleet, without(dead), {0: FOUR})
    fleet.finish()

    assert [one.owner for one in commit.stand_ins] == [dead]
    assert_as_if_nothing_happened(final_losses(fleet), 40)
