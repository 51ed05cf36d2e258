"""A device of a live job gets slow where only a part of one stage's work can relieve it: routes come, and go again."""

from dataclasses import replace

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.model.model import model_spec_of
from evenkeel.trainer_sdk.launcher.inject import slow
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from tests.e2e.live_run import LiveRun, MadePlan, example_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

VICTIM, SPEED = 2, 0.4  # from 0.36 to 0.46 one route is all that pays: a speed is told too high beside others' work
HEALTHY_ITERATIONS = 30  # a job whose start was rough is known by then


@pytest.fixture(scope="module")
def run(stack: Stack) -> LiveRun:
    spec = example_job(stack, "routes")
    # Three micro-batches a replica: one more or one less takes longer than the slow stage does.
    layout = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=6)
    config = {**spec.config, "model": {**spec.config["model"], "num_layers": 2}}
    alike = {"median_document_length": 32.0, "length_spread": 0.05}  # or one large micro-batch decides what pays
    config["workload"] = {**config["workload"], **alike, "num_micro_batches": layout.num_micro_batches}
    spec = replace(
        spec,
        layout=replace(layout, routable=True),
        config=config,
        flops_per_second=spec.flops_per_second / 6,  # slow enough for a busy machine to keep
    )
    with Launcher(spec, model_spec_of(spec.config)) as launcher:
        run = LiveRun(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow(spec.run_dir, VICTIM, SPEED)
        routed = run.measured_plan(relieves_the_victim)
        slow(spec.run_dir, VICTIM, 1.0)
        run.until(lambda: ends_of_routes(run, routed) != [], "a plan for the recovered device")
        run.until(lambda: ("recovered", VICTIM) in run.accused(), "word of its recovery")
    return run


def relieves_the_victim(plan: MadePlan) -> bool:
    """The victim's stage of some micro-batches runs in another replica than the one that it has its place in."""
    places = {
        (replica, stage)
        for replica, each in enumerate(plan.layout["replicas"])
        for stage, one in enumerate(each["stages"])
        if VICTIM in one["ranks"]
    }
    return any(
        route["stage"] == stage and route["replica"] != replica
        for route in plan.layout.get("routes") or ()
        for replica, stage in places
    )


def ends_of_routes(run: LiveRun, routed: MadePlan) -> list[MadePlan]:
    """Plans after it that were applied and relieve the victim no more, by the lever that did."""
    return [
        plan
        for plan in run.plans()
        if plan.epoch > routed.epoch
        and "applied" in plan.states
        and "migrate_stage" in plan.levers
        and not relieves_the_victim(plan)
    ]


def test_a_part_of_the_slow_stage_runs_elsewhere_and_the_plan_is_kept_with_what_it_brought(run: LiveRun) -> None:
    plan = run.measured_plan(relieves_the_victim)
    assert any("migrate_stage" in each.levers for each in run.plans() if each.epoch <= plan.epoch)
    assert plan.predicted_seconds < 0.98 * run.idle_seconds(plan)
    assert plan.measured_seconds, "how much longer it takes than foretold is the machine's affair"
    assert {"committed", "applied", "measured"} <= plan.states


def test_the_routes_end_with_the_illness(run: LiveRun) -> None:
    assert ends_of_routes(run, run.measured_plan(relieves_the_victim))


def test_the_slow_device_was_accused_and_told_recovered_and_nobody_was_given_up(run: LiveRun) -> None:
    assert {("compute_slow", VICTIM), ("recovered", VICTIM)} <= run.accused()
    assert run.lost() == set()
