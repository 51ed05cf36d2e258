"""What a rank still holds of older epochs, and when it lets go of it."""

from dataclasses import replace

import pytest
import torch

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.holdings import Holdings
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, initial_state


def layout_of(config: TrainingConfig) -> Layout:
    return uniform_layout(
        num_blocks=config.model.num_blocks,
        tensor=1,
        pipeline=1,
        data=2,
        num_micro_batches=config.workload.num_micro_batches,
    )


def state_of(config: TrainingConfig, epoch: int, steps_applied: int) -> ShardState:
    return replace(initial_state(config, layout_of(config), 0), epoch=epoch, steps_applied=steps_applied)


def sums_of(config: TrainingConfig, iteration: int) -> GradientSums:
    specs, layout = parameter_specs(config.model), layout_of(config)
    sums = GradientSums(OwnershipMap(specs, layout), 0, torch.device("cpu"))
    sums.begin(iteration)
    return sums


def plan(config: TrainingConfig, epoch: int, from_epoch: int, steps_applied: int, sources: tuple[int, ...]) -> Commit:
    layout = layout_of(config)
    reshape = Reshape(job_id="job", plan_id="plan", epoch=epoch, mode=ApplyMode.RECOVER, to_layout=layout)
    return Commit(
        reshape=reshape, from_epoch=from_epoch, from_layout=layout, sources=sources, steps_applied=steps_applied
    )


@pytest.fixture
def holdings(small_config: TrainingConfig) -> Holdings:
    """Of rank 0, which has trained to step 3 in epoch 0 and has sums of iteration 3."""
    held = Holdings(0, PeerCopies(small_config, 0))
    held.begin(state_of(small_config, 0, 3))
    held.take_sums(0, sums_of(small_config, 3))
    return held


def test_what_was_read_from_stays_until_a_step_of_the_newer_epoch_is_voted(
    holdings: Holdings, small_config: TrainingConfig
) -> None:
    recovery = plan(small_config, 1, 0, 3, (0, 1))
    source, sums = holdings.readable(recovery)
    assert (source, sums is not None) == (holdings[0], True)
    holdings.follow(recovery, state_of(small_config, 1, 3))
    holdings.take_sums(1, sums_of(small_config, 3))
    assert holdings.epochs == (0, 1)
    assert holdings.readable(plan(small_config, 2, 0, 3, (0, 1))) == (source, sums), "a second failure reads it again"
    assert holdings.settle(1)
    assert holdings.epochs == (1,)
    assert holdings.readable(recovery) == (None, None)
    assert not holdings.settle(1)


def test_who_goes_back_in_one_epoch_lets_go_of_the_others(
    holdings: Holdings, small_config: TrainingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says one step of all that it holds: those of a newer epoch would count as a step that nobody else is at."""
    holdings.follow(plan(small_config, 1, 0, 3, (0, 1)), state_of(small_config, 1, 3))
    earlier = state_of(small_config, 0, 2)
    monkeypatch.setattr(PeerCopies, "own_state", lambda *_: earlier)
    back = plan(small_config, 2, 0, 2, (0, 1))
    holdings.go_back(back)
    assert holdings.epochs == (0,)
    assert holdings.readable(back)[0] is earlier


def test_a_rank_that_is_no_source_is_not_read_and_sums_of_another_iteration_are_dropped(
    holdings: Holdings, small_config: TrainingConfig
) -> None:
    assert holdings.readable(plan(small_config, 1, 0, 3, (1,))) == (None, None)
    later = plan(small_config, 1, 0, 4, (0, 1))
    holdings.follow(later, state_of(small_config, 1, 4))
    state, sums = holdings.readable(later)
    assert state is not None
    assert sums is None
