"""A device of a live job gets slow, its ranks get several stages each, and one of them dies while they have them."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from benchmarks.planning.live.virtual_stages import interleavable_job
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.launcher.inject import kill, slow
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from tests.e2e.live_run import LiveRun, MadePlan, evenkeel, example_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SLOW, SPEED, DEAD = 2, 0.4, 1
TOLERANCE = 0.15
HEALTHY_ITERATIONS = 16


@dataclass
class ExplainedRun(LiveRun):
    """And what ``evenkeel why`` said while ranks had several stages."""

    said: dict[str, Any] = field(default_factory=dict)

    def is_explained(self) -> bool:
        """Asks; whether the newest iterations ran under such a plan, and their time is explained.

        Other work on this machine may come between two operations, where nobody measures.
        """
        self.said = evenkeel(self.stack, "why", self.launcher.spec.job_id, "-n", "12")
        replayed, measured = self.said["replayed_seconds"], self.said["measured_seconds"]
        return self.is_laid_along_orders() and abs(replayed - measured) <= TOLERANCE * measured

    def is_laid_along_orders(self) -> bool:
        epochs = [plan.epoch for plan in self.plans() if has_several_stages(plan)]
        return str(self.said["laid_along"]).startswith(
            tuple(f"the orders of epoch {epoch}, up to " for epoch in epochs)
        )


def has_several_stages(plan: MadePlan) -> bool:
    return any(len(replica["stages"]) > len(ranks_of(replica)) for replica in plan.layout["replicas"])


def ranks_of(replica: dict[str, Any]) -> set[int]:
    return {rank for stage in replica["stages"] for rank in stage["ranks"]}


def is_without_the_dead(plan: MadePlan) -> bool:
    return all(DEAD not in ranks_of(replica) for replica in plan.layout["replicas"])


@pytest.fixture(scope="module")
def run(stack: Stack) -> ExplainedRun:
    job = interleavable_job(2.4)  # its devices are slower than what other work on this machine adds
    alike = {"median_document_length": 32.0, "length_spread": 0.05}
    spec = replace(
        example_job(stack, "virtual-stages"),
        layout=job.layout,
        config={
            "num_iterations": 2000,
            "model": asdict(job.config.model),
            "workload": {**asdict(job.config.workload), **alike},
        },
        flops_per_second=job.flops_per_second,
        restart_delay_seconds=None,  # a replacement could be there before a plan without the dead one is measured
    )
    with Launcher(spec, job.model) as launcher:
        run = ExplainedRun(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow(spec.run_dir, SLOW, SPEED)
        run.measured_plan(has_several_stages)
        run.until(run.is_explained, "iterations taken apart along the orders of the plan")
        kill(spec.run_dir, DEAD)
        run.measured_plan(is_without_the_dead)
        first = run.iteration()
        run.until(lambda: run.iteration() >= first + 3, "iterations after it")
    return run


def test_the_plan_gives_ranks_several_stages_and_is_kept_with_what_it_brought(run: LiveRun) -> None:
    plan = run.measured_plan(has_several_stages)
    assert any("virtual_stages" in each.levers for each in run.plans() if each.epoch <= plan.epoch)
    (replica,) = plan.layout["replicas"]
    assert len(replica["orders"]) == len(ranks_of(replica)) == 4
    assert plan.predicted_seconds < 0.85 * run.idle_seconds(plan)
    assert plan.measured_seconds, "how much longer it takes than foretold is the machine's affair"
    assert {"committed", "applied", "measured"} <= plan.states


def test_its_iterations_are_taken_apart_along_the_orders_of_the_plan(run: ExplainedRun) -> None:
    assert run.is_laid_along_orders()
    assert run.said["replayed_seconds"] == pytest.approx(run.said["measured_seconds"], rel=TOLERANCE)


def test_a_death_while_it_is_so_is_recovered_from(run: LiveRun) -> None:
    plan = run.measured_plan(is_without_the_dead)
    assert plan.layout["replicas"], "the job goes on"
    assert {"committed", "applied"} <= plan.states


def test_the_slow_and_the_dead_were_accused_and_nobody_else_was_given_up(run: LiveRun) -> None:
    assert ("compute_slow", SLOW) in run.accused()
    assert run.lost() == {DEAD}
