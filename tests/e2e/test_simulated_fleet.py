"""A fleet that does not exist, against the services as they are: verdicts and plans for simulated ranks."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults.faults import Fault
from evenkeel.simulator.fleet.scenario.scenario import Scenario, scenario_of
from evenkeel.simulator.live.live_run import LiveReport, LiveRun, Services, simulated_job
from evenkeel.stack.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SCENARIO = {
    "hours": 1,
    "job": {
        "model": {"num_layers": 16, "hidden": 1024, "heads": 16, "feed_forward": 4096},
        "tensor": 2,
        "pipeline": 2,
        "data": 2,
        "micro_batches": 8,
    },
    "fleet": {"devices_per_node": 4},
}
ITERATION_SECONDS = 0.4
PATIENCE_SECONDS = 900.0
"""On a machine that others want too; a run ends as soon as enough was seen."""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return scenario_of(SCENARIO, list(STRATEGIES))


def told(stack: Stack, *arguments: str) -> Any:
    """What the command line says, from another shell."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    done = subprocess.run(
        [sys.executable, "-m", "evenkeel.cli", "-o", "json", "--stack", stack.name, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=clean,
    )
    return json.loads(done.stdout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A job of the fleet: what breaks, and when enough was seen. A dead device is repaired when it was left behind."""

    fault: Fault
    num_epochs: int
    num_iterations: int

    def enough(self, live: LiveRun) -> bool:
        (device,) = self.fault.devices
        if device not in live.job.layout.ranks and device not in live.job.ranks:
            live.repair(self.fault)
        seen = live.report.iteration_seconds.get(live.report.epochs[-1], ())
        return len(live.report.epochs) >= self.num_epochs and len(seen) >= self.num_iterations


PLAYED = {
    "simulated-slow": Played(
        fault=Fault(at_seconds=16.0, devices=(3,), throughput=0.5), num_epochs=2, num_iterations=5
    ),
    "simulated-dead-told": Played(fault=Fault(at_seconds=8.0, devices=(5,)), num_epochs=3, num_iterations=2),
    "simulated-dead-silent": Played(
        fault=Fault(at_seconds=8.0, devices=(5,), silent=True), num_epochs=3, num_iterations=2
    ),
}


@pytest.fixture(scope="module")
def reports(stack: Stack, scenario: Scenario) -> dict[str, LiveReport]:
    """All jobs at the same time: one fleet of services serves many, and most of a job is waiting."""
    everyone = dict.fromkeys(scenario.home.ranks, 1.0)
    speed = Replay(scenario.cost).seconds(scenario.home, everyone) / ITERATION_SECONDS
    settings = stack.addresses.environment()

    async def play(job_id: str, played: Played) -> LiveReport:
        live = LiveRun(
            simulated_job(scenario, job_id, speed, 0),
            [played.fault],
            num_devices=8,
            services=Services(
                bootstrap_servers=settings["EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"],
                fleet_address=settings["EVENKEEL_FLEET_ADDRESS"],
                fleet_token=settings["EVENKEEL_FLEET_TOKEN"],
            ),
            job_token=uuid.uuid4().hex,
        )
        return await live.run(PATIENCE_SECONDS, lambda _: played.enough(live))

    async def play_all() -> list[LiveReport]:
        return await asyncio.gather(*(play(job_id, played) for job_id, played in PLAYED.items()))

    return dict(zip(PLAYED, asyncio.run(play_all()), strict=True))


def test_a_slow_simulated_device_is_found_and_the_job_reshaped(stack: Stack, reports: dict[str, LiveReport]) -> None:
    report = reports["simulated-slow"]
    # A second plan may follow at once: how slow the device is becomes known better.
    assert len(report.epochs) >= 2, told(stack, "incidents", "list", "--job", "simulated-slow")
    before = report.iteration_seconds[0]
    after = report.iteration_seconds[report.epochs[-1]]
    # The slowest before are those with the slow device; the plan wins most of it back.
    assert max(before) > 1.4 * min(before)
    assert sum(after) / len(after) < 0.85 * max(before)
    incidents = told(stack, "incidents", "list", "--job", "simulated-slow")
    assert [incident["culprits"] for incident in incidents] == [["rank 3 (node-0/gpu-3)"]]
    assert report.waited_seconds < 10.0, "a plan for a slow device is no standstill"


@pytest.mark.parametrize("job_id", ["simulated-dead-told", "simulated-dead-silent"])
def test_a_dead_simulated_device_is_left_behind_and_comes_back(
    stack: Stack, reports: dict[str, LiveReport], job_id: str
) -> None:
    report = reports[job_id]
    assert len(report.epochs) >= 3, report
    assert report.iteration_seconds[report.epochs[-1]]
    with psycopg.connect(stack.addresses.database_url) as connection:
        # A decision is in the history before any rank switches; that all have is written some time after.
        decided = connection.execute(
            "SELECT mode FROM plans JOIN plan_events USING (plan_id) "
            "WHERE job_id = %s AND state = 'committed' ORDER BY at",
            (job_id,),
        ).fetchall()
    modes = [mode for (mode,) in decided]
    assert modes[0] == "recover"
    assert modes[-1] == "boundary"
