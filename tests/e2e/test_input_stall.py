"""The input of one rank of a live job gets slow: told with advice, and nobody makes a plan of it."""

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.model.model import model_spec_of
from evenkeel.trainer_sdk.launcher.inject import slow_input
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from tests.e2e.live_run import LiveRun, example_job, narrowed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VICTIM = 2
TWINS = ((0, 1), (2, 3))  # two shards of the same stage each
EVEN = 0.02  # devices on an idle machine take the same time within half of this
READ_SECONDS = 0.04
HEALTHY_ITERATIONS = 12
STALLED_ITERATIONS = 20
WINDOW_ITERATIONS = 12  # what the detector counts stalls in


@dataclass
class StalledRun(LiveRun):
    """A job of four ranks, one of whose inputs was slow for a while.

    Attributes:
        onset: Last iteration that was seen before the input got slow.
        latest: First iteration that was seen afterwards; ranks tell how far they are only now and then.
    """

    onset: int = -1
    latest: int = -1

    def seen_after(self, unix_seconds: float) -> bool:
        note = self.launcher.progress.newest()
        return note is not None and note.at_unix_seconds > unix_seconds


@pytest.fixture(scope="module")
def run(stack: Stack) -> StalledRun:
    spec = narrowed(example_job(stack, "input-stall"))
    layout = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=1, num_micro_batches=8)
    spec = replace(spec, layout=layout, flops_per_second=2 * spec.flops_per_second)
    with Launcher(spec, model_spec_of(spec.config)) as launcher:
        run = StalledRun(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        run.onset = run.iteration()
        slow_input(spec.run_dir, VICTIM, READ_SECONDS)
        slow_since = time.time()
        run.until(lambda: run.seen_after(slow_since), "an iteration that was noted since")
        run.latest = run.iteration()
        run.until(lambda: bool(stalls(run)), "a verdict")
        run.until(lambda: run.iteration() >= run.onset + STALLED_ITERATIONS, "iterations with slow input")
        run.until(lambda: data_seconds(run)[VICTIM] > 3 * READ_SECONDS, "a window of them in the history")
    return run


def stalls(run: StalledRun) -> list[tuple[Any, ...]]:
    """First iteration, throughput and evidence of each verdict that names the victim and nobody else."""
    return run.ask(
        "SELECT v.first_iteration, v.throughput, v.evidence FROM verdicts v WHERE v.job_id = %s "
        "AND v.kind = 'input_stall' AND ARRAY(SELECT rank FROM verdict_culprits c "
        "WHERE c.verdict_id = v.verdict_id) = ARRAY[%s]::integer[] ORDER BY v.decided_at",
        VICTIM,
    )


def data_seconds(run: StalledRun) -> dict[int, float]:
    """Of each rank, the mean of an iteration's data in the window where that was most."""
    found = run.ask("SELECT rank, max(data_seconds) FROM rank_rollups WHERE job_id = %s GROUP BY rank")
    return defaultdict(float, found)


def unevenness(run: StalledRun) -> float:
    """How much longer one of two devices took for the same work, where that was most.

    Nobody slowed any of them down: this machine did.
    """
    found = run.ask(
        "SELECT rank, first_iteration, num_iterations, forward_seconds + backward_seconds FROM rank_rollups "
        "WHERE job_id = %s AND epoch = 0"
    )
    seconds = {(rank, first, count): spent for rank, first, count, spent in found}
    ratios = [
        max(spent, other) / min(spent, other)
        for (rank, first, count), spent in seconds.items()
        for left, right in TWINS
        if rank == left and (other := seconds.get((right, first, count)))
    ]
    assert ratios, "no window of two that did the same"
    return max(ratios) - 1.0


def test_the_stall_is_told_with_the_rank_and_how_much_it_costs(run: StalledRun) -> None:
    first_iteration, throughput, evidence = stalls(run)[0]
    # The same loader may have been late by itself shortly before, where this machine was busy.
    assert run.onset - WINDOW_ITERATIONS < first_iteration <= run.latest + STALLED_ITERATIONS
    # Where compute takes longer than it should, the same seconds are a lesser part.
    assert 0.2 < throughput < 0.99
    assert evidence[0]["unit"] == "%"
    assert evidence[0]["value"] > 3


def test_there_is_advice_and_no_plan_for_it(run: StalledRun) -> None:
    assert "look at the storage" in str(stalls(run)[0])
    made = run.ask("SELECT i.kind FROM plans p LEFT JOIN incidents i USING (incident_id) WHERE p.job_id = %s")
    assert ("input_stall",) not in made


def test_it_is_told_once_and_nobody_is_called_slow_where_this_machine_held_up_nobody(run: StalledRun) -> None:
    verdicts = run.ask("SELECT kind FROM verdicts WHERE job_id = %s AND kind NOT IN ('jitter', 'periodic_pause')")
    plans = run.ask("SELECT plan_id FROM plans WHERE job_id = %s")
    assert (verdicts, plans) == ([("input_stall",)], []) or unevenness(run) > EVEN


def test_the_history_has_the_seconds(run: StalledRun) -> None:
    seconds = data_seconds(run)
    stalled = seconds.pop(VICTIM)
    assert stalled > 3 * READ_SECONDS
    assert 0.0 < max(seconds.values()) < stalled / 3
