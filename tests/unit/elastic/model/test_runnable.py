from dataclasses import replace

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.runnable import check_runnable

CONFIG = TrainingConfig()
HOME = uniform_layout(
    num_blocks=CONFIG.model.num_blocks,
    tensor=2,
    pipeline=2,
    data=2,
    num_micro_batches=CONFIG.workload.num_micro_batches,
)


def test_the_layout_that_the_job_begins_with_can_be_run() -> None:
    check_runnable(CONFIG, HOME)


def test_a_schedule_that_nobody_knows_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule 'zero-bubble'; known: .*1f1b"):
        check_runnable(CONFIG, replace(HOME, schedule="zero-bubble"))


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_schedule_can_be_run(schedule: str) -> None:
    check_runnable(CONFIG, replace(HOME, schedule=schedule))


@pytest.mark.parametrize(
    ("blocks", "micro_batches", "problem"), [(1, 0, "9 blocks, but the model has 8"), (0, 2, "micro-batches")]
)
def test_a_layout_of_another_job_is_refused(blocks: int, micro_batches: int, problem: str) -> None:
    other = uniform_layout(
        num_blocks=HOME.num_blocks + blocks,
        tensor=2,
        pipeline=2,
        data=2,
        num_micro_batches=HOME.num_micro_batches + micro_batches,
    )
    with pytest.raises(ValueError, match=problem):
        check_runnable(CONFIG, other)
