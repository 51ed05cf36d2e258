"""Kafka frozen and PostgreSQL killed under a live job that loses a rank meanwhile: the whole stack, all of it real."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from evenkeel.stack.processes.faults import frozen
from evenkeel.stack.services import SERVICE_NAMES, is_healthy
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.model.model import model_spec_of
from evenkeel.trainer_sdk.launcher import inject
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from tests.e2e.live_run import PATIENCE_SECONDS, LiveRun, example_job, narrowed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

VICTIM = 3
WINDOW = 16  # iterations in a rollup, by default


@dataclass
class OutageRun(LiveRun):
    """A job of eight ranks.

    Attributes:
        last_iteration: The newest at its end.
        log_bytes: How much each service had said before the outages.
    """

    last_iteration: int = -1
    log_bytes: dict[str, int] = field(default_factory=dict)

    def log_of(self, service: str) -> str:
        """What a service has said since then."""
        return self._log_path(service).read_bytes()[self.log_bytes[service] :].decode()

    def note_logs(self) -> None:
        """The outages begin."""
        self.log_bytes = {service: self._log_path(service).stat().st_size for service in SERVICE_NAMES}

    def _log_path(self, service: str) -> Path:
        return self.stack.log_folder / f"{service}.log"

    def ways(self) -> list[tuple[int, str, list[str]]]:
        """Epoch, mode and states of every plan, in order."""
        return [
            (epoch, mode, states)
            for epoch, mode, states in self.ask(
                "SELECT epoch, mode, (SELECT array_agg(state ORDER BY at) FROM plan_events e "
                "WHERE e.plan_id = p.plan_id) FROM plans p WHERE job_id = %s ORDER BY proposed_at"
            )
        ]

    def recovered(self, state: str) -> bool:
        """Whether the plan for the death got so far, or one that came after it."""
        epochs = [epoch for epoch, mode, states in self.ways() if mode == "recover" and "applied" in states]
        return any(state in states for epoch, _, states in self.ways() if epoch >= min(epochs, default=math.inf))

    def returned(self) -> bool:
        """Whether the victim's new process trains."""
        return (self.launcher.spec.run_dir / "logs" / f"rank-{VICTIM}-1.log").exists() and self.ask(
            "SELECT 1 FROM incidents i JOIN incident_events e USING (incident_id) "
            "WHERE i.job_id = %s AND i.kind = 'fail_stop' AND e.kind = 'resolved'"
        ) != []


@pytest.fixture(scope="module")
def run(stack: Stack) -> OutageRun:
    """After the outages: the job has ended and the services are still there."""
    spec = replace(narrowed(example_job(stack, "outages")), restart_delay_seconds=None)
    with Launcher(spec, model_spec_of(spec.config)) as launcher:
        run = OutageRun(stack, launcher)
        play(run)
    return run


def play(run: OutageRun) -> None:
    run.note_logs()
    run.until(lambda: run.iteration() >= 20, "20 iterations")
    with frozen(run.stack.server_process_ids["kafka"]):
        began = run.iteration()
        run.until(lambda: run.iteration() >= began + 5, "training beside a frozen Kafka")
        inject.kill(run.launcher.spec.run_dir, VICTIM)
        run.until(lambda: run.recovered("applied"), "the recovery, while Kafka is frozen")
        run.until(lambda: run.iteration() >= began + 10, "training in the new shape, while Kafka is frozen")
    run.until(lambda: run.recovered("measured"), "the detector to be heard again")
    killed = run.stack.kill_service("postgres")
    run.launcher.restart(VICTIM)
    run.until(lambda: run.stack.server_process_ids["postgres"] != killed, "a new PostgreSQL")
    run.until(healthy(run), "health of all services")
    run.until(run.returned, "the return of the rank")
    began = run.iteration()
    run.until(lambda: run.iteration() >= began + 5, "training in the full shape")
    run.last_iteration = run.iteration()


def healthy(run: OutageRun) -> Callable[[], bool]:
    return lambda: all(is_healthy(port) for port in run.stack.addresses.metrics_ports.values())


def test_death_and_return_are_in_the_history_once(run: OutageRun) -> None:
    # Whether a busy machine is called slow is not asked here.
    incidents = run.ask("SELECT kind FROM incidents WHERE job_id = %s AND kind IN ('fail_stop', 'hang')")
    verdicts = run.ask(
        "SELECT kind FROM verdicts WHERE job_id = %s AND kind IN ('fail_stop', 'hang', 'rejoined') ORDER BY decided_at"
    )
    assert incidents == [("fail_stop",)]
    assert [kind for (kind,) in verdicts] == ["fail_stop", "rejoined"]


def test_each_plan_went_its_whole_way(run: OutageRun) -> None:
    plans = run.ways()
    assert [mode for _, mode, states in plans if "applied" in states].count("recover") == 1
    assert [epoch for epoch, _, _ in plans] == sorted({epoch for epoch, _, _ in plans})
    # On a busy machine there may be a plan for a slow rank, and the death may come when that is decided.
    ways = (
        ["proposed", "committed", "applied", "measured"],
        ["proposed", "aborted"],
        ["proposed", "committed", "aborted"],
    )
    assert all(any(states == way[: len(states)] for way in ways) for _, _, states in plans), plans
    deadline = time.monotonic() + PATIENCE_SECONDS
    while run.ask("SELECT 1 FROM outbox WHERE key = %s") != []:
        assert time.monotonic() < deadline, "news that nobody was told"
        time.sleep(0.1)


def test_no_iteration_of_a_survivor_is_missing_and_none_is_there_twice(run: OutageRun) -> None:
    survivor = 0 if VICTIM else 1

    full, rest = divmod(run.last_iteration + 1, WINDOW)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        # A reshape cuts a window in two, so windows are added up.
        windows = run.ask(
            "SELECT first_iteration / 16, sum(num_iterations) FROM rank_rollups WHERE job_id = %s AND rank = %s "
            "GROUP BY 1 ORDER BY 1",
            survivor,
        )
        if windows[:full] == [(number, WINDOW) for number in range(full)] and sum(n for _, n in windows[full:]) >= rest:
            return
        assert time.monotonic() < deadline, f"the job got to iteration {run.last_iteration}, rollups hold {windows}"
        time.sleep(0.1)


@pytest.mark.parametrize("service", SERVICE_NAMES)
def test_every_service_waited_and_said_so_in_few_words(run: OutageRun, service: str) -> None:
    assert run.stack.service_restarts[service] == 0
    log = run.log_of(service)
    assert "Traceback" not in log
    lines = [json.loads(line) for line in log.splitlines()]
    said = [line["event"] for line in lines if line.get("dependency") == "kafka (consumer)"]
    assert said[said.index("unreachable, waiting for it") + 1] == "reachable again"
    assert len(said) < 10
