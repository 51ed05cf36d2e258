"""Real processes on gloo: whatever happens to the layout, the losses are those of the run that nothing happens to."""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import pytest
import torch

from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.trainer_sdk.elastic.config import (
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
    WorkloadConfig,
)
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses
from tests.integration.elastic.fleet import kept_of, run_of
from tests.integration.elastic.rank_process import ANY

pytestmark = pytest.mark.integration

MODEL = ModelConfig(num_layers=2, num_heads=6, head_dim=4, mlp_multiple=2, max_document_length=64)
WORKLOAD = WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=20.0, corpus_bytes=300_000)
TOLERANCE = 1e-12


def config(num_iterations: int, max_gradient_norm: float | None = None) -> TrainingConfig:
    return TrainingConfig(
        num_iterations=num_iterations,
        dtype="float64",
        model=MODEL,
        workload=WORKLOAD,
        optimizer=OptimizerConfig(max_gradient_norm=max_gradient_norm),
    )


@lru_cache
def expected(num_iterations: int, max_gradient_norm: float | None = None) -> list[float]:
    return [*islice(reference_losses(config(num_iterations, max_gradient_norm)), num_iterations)]


def stage(first: int, stop: int, ranks: tuple[int, ...], shares: tuple[int, ...] | None = None) -> Stage:
    return Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares or (1,) * len(ranks))


def replica(num_micro_batches: int, *stages: Stage) -> Replica:
    return Replica(stages=stages, num_micro_batches=num_micro_batches)


UNIFORM = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=4)
SKEWED = Layout(
    num_blocks=4,
    replicas=(
        replica(3, stage(0, 3, (0, 1), (2, 1)), stage(3, 4, (2,))),
        replica(1, stage(0, 1, (4,)), stage(1, 4, (5, 6, 7), (3, 1, 2))),
    ),
    standbys=(3,),
)


def without(rank: int) -> Layout:
    """The uniform layout whose stage of ``rank`` goes on with its other shard."""
    replicas = []
    for old in UNIFORM.replicas:
        stages = []
        for s in old.stages:
            ranks = tuple(other for other in s.ranks if other != rank)
            stages.append(stage(s.first_block, s.stop_block, ranks))
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=old.num_micro_batches))
    return Layout(num_blocks=4, replicas=tuple(replicas))


def assert_as_if_nothing_happened(fleet, num_iterations: int, max_gradient_norm: float | None = None) -> None:
    losses = fleet.losses
    assert len(losses) == num_iterations
    reference = expected(num_iterations, max_gradient_norm)
    worst = max(abs(a - b) / b for a, b in zip(losses, reference, strict=True))
    assert worst < TOLERANCE, f"worst relative difference {worst}"
    assert not fleet.repeated, f"steps counted twice: {fleet.repeated}"
    assert_every_micro_batch_was_consumed_once(fleet, num_iterations)


def assert_every_micro_batch_was_consumed_once(fleet, num_iterations: int) -> None:
    """The same micro-batches with the same documents as without failures: none lost, none used by two replicas."""
    dataset = Dataset(config(num_iterations), torch.device("cpu"))
    for iteration in range(num_iterations):
        due = []
        for index in range(WORKLOAD.num_micro_batches):
            documents = dataset.micro_batch(iteration, index).documents
            due.append((index, documents.num_tokens, documents.sum_of_squares))
        assert fleet.consumed(iteration) == due, f"iteration {iteration}"


def test_a_boundary_reshape_to_an_unequal_layout_and_back_changes_no_loss(start_fleet: Callable) -> None:
    fleet = start_fleet(config(17), UNIFORM)
    fleet.reached(3)
    fleet.boundary(SKEWED)
    fleet.pump_until(lambda: any(s.place.epoch == 1 for of in fleet.samples.values() for s in of.values()), "epoch 1")
    fleet.reached(max(fleet.samples) + 2)
    fleet.boundary(UNIFORM)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 17)
    epochs = [max(sample.place.epoch for sample in fleet.samples[i].values()) for i in range(17)]
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1, 2}


def test_every_position_is_killed_and_replaced_in_turn_and_no_loss_changes(start_fleet: Callable) -> None:
    fleet = start_fleet(config(60), UNIFORM)
    fleet.reached(1)
    for incarnation, rank in enumerate(UNIFORM.ranks, start=1):
        fleet.kill(rank)
        fleet.recover(without(rank))
        fleet.reached(max(fleet.samples) + 1)
        fleet.start_rank(rank, incarnation, None)
        fleet.boundary(UNIFORM)
        fleet.pump_until(
            lambda rank=rank: any(rank in of and of[rank].place.epoch == fleet.epoch for of in fleet.samples.values()),
            f"rank {rank} is back",
        )
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 60)


def test_a_kill_in_the_middle_of_a_reshape_is_one_more_recovery(start_fleet: Callable) -> None:
    fleet = start_fleet(config(12), UNIFORM)
    fleet.reached(2)
    fleet.kill(1)
    reshape, states = fleet.prepare_recovery(without(1))
    fleet.kill(6)
    states.pop(6)
    old = fleet.layout
    fleet.commit_recovery(reshape, states, {})
    both_gone = Layout(
        num_blocks=4,
        replicas=(
            replica(2, stage(0, 2, (0,)), stage(2, 4, (2, 3))),
            replica(2, stage(0, 2, (4, 5)), stage(2, 4, (7,))),
        ),
    )
    fleet.recover(both_gone, {0: old})
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 12)


def test_a_stopped_rank_raises_nowhere_and_the_others_go_on_without_it(start_fleet: Callable) -> None:
    fleet = start_fleet(config(12), UNIFORM)
    fleet.reached(2)
    stopped = fleet.ranks.pop(5)
    os.kill(stopped.pid, signal.SIGSTOP)
    fleet.recover(without(5))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 12)


def test_a_leaving_rank_hands_over_what_only_it_holds(start_fleet: Callable) -> None:
    wide = Layout(num_blocks=4, replicas=(replica(4, stage(0, 4, (0, 1), (1, 2))),))
    narrow = Layout(num_blocks=4, replicas=(replica(4, stage(0, 4, (1,))),), standbys=(0,))
    fleet = start_fleet(config(20), wide)
    fleet.reached(2)
    fleet.boundary(narrow)
    fleet.reached(8)
    fleet.boundary(wide)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 20)


def test_kills_at_random_moments_with_clipping_change_no_loss(start_fleet: Callable) -> None:
    chooser = random.Random(7)
    fleet = start_fleet(config(28, max_gradient_norm=0.5), UNIFORM)
    for incarnation in range(1, 6):
        target = max(fleet.samples, default=0) + chooser.randrange(1, 4)
        watched = chooser.choice(UNIFORM.ranks)
        victim = chooser.choice(UNIFORM.ranks)
        fleet.pump_until(lambda t=target, w=watched: w in fleet.samples.get(t, {}), f"rank {watched} at {target}")
        fleet.kill(victim)
        fleet.start_rank(victim, incarnation, None)
        fleet.recover(UNIFORM)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 28, 0.5)


def test_a_rank_that_dies_at_any_operation_of_an_iteration_changes_no_loss(start_fleet: Callable) -> None:
    moments = {
        0: {"operation": "forward"},
        1: {"operation": "backward", "nth": 2},
        2: {"operation": "wait:tensor", "nth": 3},
        3: {"operation": "wait:pipeline", "nth": 2},
        4: {"operation": "wait:gradient"},
        5: {"operation": "wait:gradient", "nth": 2},
        6: {"operation": "wait:vote"},
        7: {"operation": "optimizer"},
    }
    fates = {rank: {"iteration": 3 + 4 * rank, "epoch": rank, **moment} for rank, moment in moments.items()}
    fleet = start_fleet(config(34), UNIFORM, fates=fates)
    for rank, fate in fates.items():
        fleet.mourn(rank)
        assert fate["iteration"] - 1 in fleet.samples
        fleet.start_rank(rank, 1, None)
        fleet.recover(UNIFORM)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 34)


def test_what_survivors_had_finished_is_not_run_again(start_fleet: Callable) -> None:
    fleet = start_fleet(config(9), UNIFORM, fates={1: {"iteration": 5, "operation": "backward", "nth": 2}})
    fleet.mourn(1)
    fleet.reduce_begun([4, 5], 0, 5)
    fleet.recover(without(1))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)
    kept = {batch.index for sample in fleet.samples[5].values() for batch in kept_of(sample)}
    assert kept == {2, 3}, "replica 1 was through with its micro-batches, rank 1's gradients of the others are gone"
    assert fleet.num_executed(5) == 2
    assert all(fleet.num_executed(iteration) == 4 for iteration in range(9) if iteration != 5)


def test_ranks_that_leave_hand_over_the_sums_of_what_they_finished(start_fleet: Callable) -> None:
    pair = Layout(num_blocks=4, replicas=(replica(2, stage(0, 4, (0, 1), (2, 1))), replica(2, stage(0, 4, (2, 3)))))
    alone = Layout(num_blocks=4, replicas=(replica(4, stage(0, 4, (2,))),), standbys=(0, 1))
    fleet = start_fleet(config(9), pair, fates={3: {"iteration": 5, "operation": "backward", "nth": 2}})
    fleet.mourn(3)
    fleet.reduce_begun([0, 1], 0, 5)
    fleet.recover(alone)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)
    (sample,) = fleet.samples[5].values()
    assert {batch.index for batch in kept_of(sample)} == {0, 1}
    assert {batch.index for batch in run_of(sample)} == {2, 3}


def test_a_death_in_the_recovery_iteration_is_one_more_and_keeps_what_is_kept(start_fleet: Callable) -> None:
    fates = {
        1: {"iteration": 5, "operation": "wait:vote"},
        5: {"iteration": 5, "operation": "wait:vote", "epoch": 1},
    }
    fleet = start_fleet(config(9, max_gradient_norm=0.5), UNIFORM, fates=fates)
    fleet.mourn(1)
    fleet.recover(without(1))
    fleet.mourn(5)
    narrow = tuple(replica(2, stage(0, 2, (first,)), stage(2, 4, (first + 2, first + 3))) for first in (0, 4))
    fleet.recover(Layout(num_blocks=4, replicas=narrow))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9, 0.5)
    # Who dies in the vote of a first stage has reduced, so everybody was through: only its own sums may be missing.
    assert fleet.num_executed(5) <= 2


def test_each_recovery_loses_one_more_rank_and_nothing_else(start_fleet: Callable) -> None:
    fates = {
        1: {"iteration": 4, "operation": "backward", "nth": 2},
        6: {"iteration": ANY, "operation": "connect", "epoch": 1},
        4: {"iteration": ANY, "operation": "exchange", "epoch": 2},
        3: {"iteration": ANY, "operation": "gather", "epoch": 3},
    }
    fleet = start_fleet(config(9, max_gradient_norm=0.5), UNIFORM, fates=fates)
    dead: set[int] = set()
    for rank in fates:
        fleet.mourn(rank)
        dead.add(rank)
        ranks = [one for one in UNIFORM.ranks if one not in dead]
        fleet.recover(
            Layout(
                num_blocks=4, replicas=(replica(4, stage(0, 2, tuple(ranks[::2])), stage(2, 4, tuple(ranks[1::2]))),)
            ),
            {0: UNIFORM},
        )
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9, 0.5)
    assert {sample.place.epoch for sample in fleet.samples[4].values()} == {4}


MET_AND_BUILT = 7
"""Waits of rank 6 on its way to a layout before slices move: for everybody, and in each of its six groups."""


@pytest.mark.parametrize("nth", [1, 2, 7, 8], ids=["in the meeting", "first group", "last group", "first slices"])
def test_who_waits_for_others_on_its_way_to_a_layout_says_so_and_may_die_there(start_fleet: Callable, nth: int) -> None:
    fates = {
        1: {"iteration": 4, "operation": "backward", "nth": 2},
        6: {"iteration": ANY, "operation": "wait:others", "nth": MET_AND_BUILT + nth},  # those before iteration 0 first
    }
    fleet = start_fleet(config(9), UNIFORM, fates=fates)
    fleet.mourn(1)
    fleet.recover(without(1))
    fleet.mourn(6)
    ranks = [one for one in UNIFORM.ranks if one not in fates]
    alone = replica(4, stage(0, 2, tuple(ranks[::2])), stage(2, 4, tuple(ranks[1::2])))
    fleet.recover(Layout(num_blocks=4, replicas=(alone,)), {0: UNIFORM})
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)


def test_unequal_layouts_lose_only_what_the_dead_had(start_fleet: Callable) -> None:
    fates = {
        5: {"iteration": 5, "operation": "backward"},
        1: {"iteration": 9, "operation": "wait:gradient", "epoch": 1},
        3: {"iteration": 9, "operation": "backward", "epoch": 2},
    }
    fleet = start_fleet(config(13), SKEWED, fates=fates)
    fleet.start_rank(3, 0, None)
    fleet.mourn(5)
    fleet.reduce_begun([0, 1, 2], 0, 5)
    fleet.recover(
        Layout(
            num_blocks=4,
            replicas=(
                replica(1, stage(0, 2, (0, 3), (1, 2)), stage(2, 4, (2, 1))),
                replica(3, stage(0, 3, (4, 6), (3, 1)), stage(3, 4, (7,))),
            ),
        )
    )
    fleet.mourn(1)
    fleet.recover(
        Layout(
            num_blocks=4,
            replicas=(
                replica(4, stage(0, 3, (2, 3)), stage(3, 4, (0,))),
                replica(0, stage(0, 4, (4, 6, 7), (1, 4, 1))),
            ),
        )
    )
    fleet.mourn(3)
    fleet.recover(Layout(num_blocks=4, replicas=(replica(3, stage(0, 4, (2, 7))), replica(1, stage(0, 4, (4,))))))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 13)
    assert fleet.num_executed(5) == 1, "replica 0 was through with three of four"


def test_a_job_goes_over_to_a_split_backward_and_back_and_no_loss_changes(start_fleet: Callable) -> None:
    fleet = start_fleet(config(17), UNIFORM)
    fleet.reached(3)
    fleet.boundary(replace(SKEWED, schedule="zb-h1"))
    fleet.pump_until(lambda: any(s.place.epoch == 1 for of in fleet.samples.values() for s in of.values()), "epoch 1")
    fleet.reached(max(fleet.samples) + 2)
    fleet.boundary(UNIFORM)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 17)
    assert {max(sample.place.epoch for sample in of.values()) for of in fleet.samples.values()} == {0, 1, 2}


def test_deaths_between_the_parts_of_a_backward_change_no_loss(start_fleet: Callable) -> None:
    split = replace(UNIFORM, schedule="zb-h1")
    # "backward" is entered once per part and again after each wait for the other shard: three times for an input's
    # part on the second stages (order B0 B1 W0 W1), twice on the first (B0 W0 B1 W1), once for a weights' part.
    moments = {
        2: {"operation": "backward", "nth": 7},
        0: {"operation": "backward", "nth": 3},
        6: {"operation": "wait:pipeline", "nth": 2},
        5: {"operation": "wait:tensor", "nth": 4},
        3: {"operation": "backward", "nth": 8},
    }
    fates = {rank: {"iteration": 3 + 4 * n, "epoch": n, **moment} for n, (rank, moment) in enumerate(moments.items())}
    fleet = start_fleet(config(22, max_gradient_norm=0.5), split, fates=fates)
    for rank, fate in fates.items():
        fleet.mourn(rank)
        assert fate["iteration"] - 1 in fleet.samples
        fleet.start_rank(rank, 1, None)
        fleet.recover(split)
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 22, 0.5)


def test_what_another_replica_finished_is_kept_when_a_rank_dies_before_its_last_weights_part(
    start_fleet: Callable,
) -> None:
    pair = Layout(
        num_blocks=4,
        schedule="zb-h1",
        replicas=(replica(2, stage(0, 2, (0,)), stage(2, 4, (1,))), replica(2, stage(0, 2, (2,)), stage(2, 4, (3,)))),
    )
    # Backwards of rank 1: input of 0, input of 1, weights of 0, weights of 1. It dies with the first three done.
    fates = {1: {"iteration": 5, "operation": "backward", "nth": 4}}
    fleet = start_fleet(config(9), pair, fates=fates)
    fleet.mourn(1)
    fleet.reduce_begun([2, 3], 0, 5)
    fleet.recover(replace(pair, replicas=(replica(2, stage(0, 4, (0,))), pair.replicas[1])))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)
    kept = {batch.index for sample in fleet.samples[5].values() for batch in kept_of(sample)}
    assert kept == {2, 3}
    assert fleet.num_executed(5) == 2
