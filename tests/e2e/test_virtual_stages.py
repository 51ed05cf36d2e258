"""A device of a live job gets slow, its ranks get several stages each, and one of them dies while they have them."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.planning.virtual_stages import interleavable_job
from cli.main import app
from stack.paths import checkout_root
from stack.stack import Stack
from tests.e2e.test_routes import HEALTHY_ITERATIONS, Run, plans
from trainer_sdk.launcher.inject import slow
from trainer_sdk.launcher.job_file import load_job
from trainer_sdk.launcher.launcher import Launcher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SLOW, SPEED, DEAD = 2, 0.6, 1


@dataclass
class ExplainedRun(Run):
    """And what ``evenkeel why`` said while ranks had several stages."""

    said: dict[str, Any] = field(default_factory=dict)

    def why(self) -> dict[str, Any]:
        command = ["-o", "json", "why", self.launcher.spec.job_id, "-n", "12"]
        answer = CliRunner().invoke(app, command, env=self.stack.addresses.environment(), catch_exceptions=False)
        said: dict[str, Any] = json.loads(answer.stdout)
        return said


@pytest.fixture(scope="module")
def run(stack: Stack) -> ExplainedRun:
    environment = {**stack.addresses.environment(), "EVENKEEL_JOB_ID": "virtual-stages"}
    spec, _ = load_job(checkout_root() / "examples/hybrid/job.json", environment, stack.folder / "virtual-stages")
    job = interleavable_job(1.2)
    alike = {"median_document_length": 32.0, "length_spread": 0.05}
    spec = replace(
        spec,
        layout=job.layout,
        config={
            "num_iterations": 2000,
            "model": asdict(job.config.model),
            "workload": {**asdict(job.config.workload), **alike},
        },
        logs_to_files=True,
        flops_per_second=job.flops_per_second,
    )
    with Launcher(spec, job.model) as launcher:
        run = ExplainedRun(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow(spec.run_dir, SLOW, SPEED)
        run.until(lambda: "measured" in str(plans(run)), "a plan, applied and measured")
        run.said = run.why()
        launcher.kill(DEAD)
        run.until(lambda: str(plans(run)[1:]).count("measured") > 0, "a plan after the death, applied and measured")
        first = run.iteration()
        run.until(lambda: run.iteration() >= first + 3, "iterations after it")
    return run


def test_the_plan_gives_ranks_several_stages_and_is_kept_with_what_it_brought(run: Run) -> None:
    _, layout, levers, idle_seconds, predicted_seconds, measured_seconds, states = plans(run)[0]
    assert "virtual_stages" in levers
    (replica,) = layout["replicas"]
    assert len(replica["stages"]) > len({rank for stage in replica["stages"] for rank in stage["ranks"]}) == 4
    assert len(replica["orders"]) == 4
    assert predicted_seconds < 0.85 * idle_seconds
    assert 0.0 < measured_seconds < 1.3 * predicted_seconds
    assert {"committed", "applied", "measured"} <= set(states)


def test_its_iterations_are_taken_apart_along_the_orders_of_the_plan(run: ExplainedRun) -> None:
    assert run.said["laid_along"].startswith("the orders of epoch 1, up to ")
    assert run.said["replayed_seconds"] == pytest.approx(run.said["measured_seconds"], rel=0.15)


def test_a_death_while_it_is_so_is_recovered_from(run: Run) -> None:
    _, layout, *_, states = plans(run)[1]
    assert layout["replicas"], "the job goes on"
    assert {"committed", "applied"} <= set(states)


def test_only_the_slow_and_the_dead_were_accused(run: Run) -> None:
    verdicts = run.ask(
        "SELECT DISTINCT v.kind, c.rank FROM verdicts v JOIN verdict_culprits c USING (verdict_id) WHERE v.job_id = %s"
    )
    assert ("compute_slow", SLOW) in verdicts
    assert {rank for _, rank in verdicts} == {SLOW, DEAD}
