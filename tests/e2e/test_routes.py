"""A device of a live job gets slow where only a part of one stage's work can relieve it: routes come, and go again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg
import pytest

from layouts.layout import uniform_layout
from stack.paths import checkout_root
from stack.stack import Stack
from trainer_sdk.elastic.config import config_from_json
from trainer_sdk.elastic.model import model_spec
from trainer_sdk.launcher.inject import slow
from trainer_sdk.launcher.job_file import load_job
from trainer_sdk.launcher.launcher import Launcher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

VICTIM, SPEED = 2, 0.6
HEALTHY_ITERATIONS = 12
PATIENCE_SECONDS = 180.0


@dataclass
class Run:
    """A stack with a job of four ranks, one of which was slow for a while."""

    stack: Stack
    launcher: Launcher

    def ask(self, sql: LiteralString) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.addresses.database_url, connect_timeout=5) as connection:
            return connection.execute(sql, (self.launcher.spec.job_id,)).fetchall()

    def iteration(self) -> int:
        note = self.launcher.progress.newest()
        return -1 if note is None else note.iteration

    def until(self, condition: Callable[[], bool], what: str) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < PATIENCE_SECONDS, f"waited in vain: {what}; plans: {plans(self)}"
            assert self.launcher.wait(0.05) is None, "the job ended"


@pytest.fixture(scope="module")
def run(stack: Stack) -> Run:
    environment = {**stack.addresses.environment(), "EVENKEEL_JOB_ID": "routes"}
    spec, _ = load_job(checkout_root() / "examples/hybrid/job.json", environment, stack.folder / "routes")
    # Three micro-batches a replica: one more or one less takes longer than the slow stage does.
    layout = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=6)
    config = {**spec.config, "model": {**spec.config["model"], "num_layers": 2}}
    alike = {"median_document_length": 32.0, "length_spread": 0.05}  # or one large micro-batch decides what pays
    config["workload"] = {**config["workload"], **alike, "num_micro_batches": layout.num_micro_batches}
    spec = replace(
        spec,
        layout=replace(layout, routable=True),
        config=config,
        logs_to_files=True,
        flops_per_second=spec.flops_per_second / 3,
    )
    with Launcher(spec, model_spec(config_from_json(spec.config))) as launcher:
        run = Run(stack, launcher)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        slow(spec.run_dir, VICTIM, SPEED)
        run.until(lambda: "measured" in str(plans(run)), "a plan, applied and measured")
        slow(spec.run_dir, VICTIM, 1.0)
        run.until(lambda: str(plans(run)[1:]).count("applied") > 0, "a plan for the recovered device")
    return run


def plans(run: Run) -> list[tuple[Any, ...]]:
    return run.ask(
        "SELECT p.epoch, p.layout, array_agg(DISTINCT a.lever), p.idle_seconds, p.predicted_seconds, "
        "max(e.measured_seconds), array_agg(DISTINCT e.state) FROM plans p JOIN plan_actions a USING (plan_id) "
        "JOIN plan_events e USING (plan_id) WHERE p.job_id = %s GROUP BY p.plan_id ORDER BY p.epoch"
    )


def test_a_part_of_the_slow_stage_runs_elsewhere_and_the_plan_is_kept_with_what_it_brought(run: Run) -> None:
    _, layout, levers, idle_seconds, predicted_seconds, measured_seconds, states = plans(run)[0]
    assert levers == ["migrate_stage"]
    assert {(route["stage"], route["replica"]) for route in layout["routes"]} == {(0, 0)}
    assert predicted_seconds < 0.98 * idle_seconds
    assert 0.0 < measured_seconds < 1.5 * predicted_seconds
    assert {"committed", "applied", "measured"} <= set(states)


def test_the_routes_end_with_the_illness(run: Run) -> None:
    _, layout, levers, *_ = plans(run)[1]
    assert "routes" not in layout
    assert levers == ["migrate_stage"]


def test_only_the_slow_device_was_accused(run: Run) -> None:
    verdicts = run.ask(
        "SELECT DISTINCT v.kind, c.rank FROM verdicts v JOIN verdict_culprits c USING (verdict_id) WHERE v.job_id = %s"
    )
    assert set(verdicts) == {("compute_slow", VICTIM), ("recovered", VICTIM)}
