"""Real processes on gloo under a sequence mix: the losses are those of the run without one, whatever happens."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import pytest

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.sizes.mix import Mix, mix_for
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.model import model_spec
from evenkeel.trainer_sdk.elastic.model.reference import reference_losses

pytestmark = pytest.mark.integration

CONFIG = TrainingConfig(
    num_iterations=12,
    dtype="float64",
    model=ModelConfig(num_layers=2, num_heads=4, head_dim=4, mlp_multiple=2, max_document_length=64),
    workload=WorkloadConfig(num_micro_batches=4, token_budget=64, median_document_length=12.0, corpus_bytes=300_000),
)
EVEN = mix_for(model_spec(CONFIG), (2, 2), num_stages=1)
HOME = replace(uniform_layout(num_blocks=4, tensor=2, pipeline=1, data=2, num_micro_batches=4), mix=EVEN)
SLOW_FIRST = replace(HOME, mix=replace(EVEN, counts=(2, 2), weights=(2, 3)))


def without(layout: Layout, rank: int, mix: Mix | None) -> Layout:
    replicas = []
    for old in layout.replicas:
        kept = tuple(other for other in old.stages[0].ranks if other != rank)
        stage = replace(old.stages[0], ranks=kept, shares=(1,) * len(kept))
        replicas.append(replace(old, stages=(stage,)))
    return replace(layout, replicas=tuple(replicas), mix=mix)


@lru_cache
def expected() -> list[float]:
    return [*islice(reference_losses(CONFIG), CONFIG.num_iterations)]


def assert_same_training(fleet) -> None:
    assert fleet.losses == pytest.approx(expected(), rel=1e-12)
    assert not fleet.repeated
    dataset = Dataset(CONFIG)
    for iteration in range(CONFIG.num_iterations):
        drawn = [dataset.documents(iteration, index) for index in range(4)]
        consumed = fleet.consumed(iteration)
        assert [index for index, _, _ in consumed] == [0, 1, 2, 3]
        assert sum(tokens for _, tokens, _ in consumed) == sum(each.num_tokens for each in drawn)
        assert sum(squares for _, _, squares in consumed) == sum(each.sum_of_squares for each in drawn)


def test_a_reshape_that_changes_the_mix_changes_no_loss(start_fleet: Callable) -> None:
    fleet = start_fleet(CONFIG, HOME)
    fleet.reached(3)
    fleet.boundary(SLOW_FIRST)
    fleet.reached(max(fleet.samples) + 4)
    fleet.finish()
    assert_same_training(fleet)


@pytest.mark.parametrize("mix", [EVEN, replace(EVEN, counts=(2, 2), weights=(1, 2)), None])
def test_after_a_death_every_document_is_consumed_once_whether_the_mix_changes_or_not(
    start_fleet: Callable, mix: Mix | None
) -> None:
    fleet = start_fleet(CONFIG, HOME, fates={1: {"iteration": 4, "operation": "wait:gradient"}})
    fleet.mourn(1)
    fleet.recover(without(HOME, 1, mix))
    fleet.finish()
    assert_same_training(fleet)
