"""A user's own training loop without the engine: death and hang are found, told with advice, and nobody plans for them.

Real parts: the stack, and three processes of a data-parallel loop on gloo, started as torchrun starts them.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import torch.distributed as dist

from evenkeel.stack.stack import Stack
from tests.e2e.live_run import LOOK_SECONDS, PATIENCE_SECONDS, evenkeel, new_folder
from tests.warm import WarmProgram

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LOOP = Path(__file__).parent / "loops" / "plain_loop.py"
NUM_RANKS = 3
VICTIM, STUCK = 2, 1
LOSSES = ("fail_stop", "hang")
HEALTHY_ITERATIONS = 40


@dataclass
class Run:
    """A stack and a job of three processes; what was seen of it before the job was started again.

    Its loop computes on this machine as it is, so a busy one makes ranks slow, which is told too: what is asked here is
    what was told of the death.
    """

    stack: Stack
    folder: Path
    settings: dict[str, str]
    processes: list[WarmProgram] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)
    store: dist.TCPStore | None = None

    @property
    def job_id(self) -> str:
        """The job."""
        return self.folder.name

    @property
    def progress(self) -> Path:
        """Has the newest iteration."""
        return self.folder / "progress"

    @property
    def stuck(self) -> Path:
        """Says who is to hang."""
        return self.folder / "stuck"

    def start(self, incarnation: int, iterations: int) -> None:
        """All ranks, as torchrun starts them."""
        self.progress.write_text("-1")
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(NUM_RANKS):
            environment = {
                **os.environ,
                **self.settings,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(NUM_RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": str(incarnation),
                "PLAIN_LOOP_STARTED": str(self.progress),
                "PLAIN_LOOP_STUCK": str(self.stuck),
            }
            with (self.folder / f"rank-{rank}-{incarnation}.log").open("wb") as log:
                self.processes.append(
                    WarmProgram([sys.executable, LOOP, str(iterations)], env=environment, stdout=log, stderr=log)
                )

    def evenkeel(self, *arguments: str) -> Any:
        """What a command says."""
        return evenkeel(self.stack, *arguments)

    def job(self) -> Any:
        return next(job for job in self.evenkeel("jobs", "list") if job["job_id"] == self.job_id)

    def ask(self, sql: LiteralString) -> list[tuple[Any, ...]]:
        """Rows of the history; the statement's parameter is the job."""
        with psycopg.connect(self.stack.addresses.database_url, connect_timeout=60) as connection:
            return connection.execute(sql, (self.job_id,)).fetchall()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < ends, f"waited in vain: {what}"
            time.sleep(LOOK_SECONDS)

    def verdicts(self, *kinds: str) -> list[Any]:
        """Those of some kinds."""
        verdicts = self.evenkeel("verdicts", "list", "--job", self.job_id)
        return [verdict for verdict in verdicts if verdict["kind"] in kinds]

    def state(self) -> str:
        ((state,),) = self.ask("SELECT state FROM current_jobs WHERE job_id = %s")
        return str(state)

    def iteration(self) -> int:
        return int(self.progress.read_text() or -1)


@pytest.fixture(scope="module")
def run(stack: Stack) -> Iterator[Run]:
    run = Run(stack, new_folder(stack, "mine"), dict(stack.addresses.environment()))
    run.settings |= run.evenkeel("jobs", "register", run.job_id, "--ranks", str(NUM_RANKS))
    try:
        run.start(0, 1_000_000)
        run.until(lambda: run.iteration() >= HEALTHY_ITERATIONS, "healthy iterations")
        run.seen["healthy"] = run.job()
        os.kill(run.processes[VICTIM].pid, signal.SIGKILL)
        run.until(
            lambda: bool(
                run.ask(
                    "SELECT 1 FROM plan_events JOIN plan_actions USING (plan_id) JOIN plans USING (plan_id) "
                    "WHERE job_id = %s AND state = 'advised' AND lever = 'drop_dead'"
                )
            ),
            "advice for the death",
        )
        run.until(lambda: all(process.poll() is not None for process in run.processes), "the ends of the others")
        run.seen["dead"] = run.job()
        plans = run.evenkeel("plans", "list", "--job", run.job_id)
        run.seen["plans"] = [plan for plan in plans if "drop_dead" in plan["levers"]]
        run.seen["explained"] = run.evenkeel("plans", "explain", run.seen["plans"][0]["plan_id"])
        run.seen["losses"] = run.verdicts(*LOSSES)
        run.seen["loss"] = run.evenkeel("verdicts", "explain", run.seen["losses"][0]["verdict_id"])
        run.start(1, 1_000_000)
        run.until(lambda: run.iteration() >= 5, "the loop started again")
        run.until(lambda: run.state() == "running", "a job that runs again")
        run.seen["again"] = run.job()
        run.seen["incidents"] = run.evenkeel("incidents", "list", "--job", run.job_id)
        run.stuck.write_text(str(STUCK))
        hangs = "SELECT 1 FROM verdicts WHERE job_id = %s AND kind = 'hang'"
        run.until(lambda: bool(run.ask(hangs)), "a verdict on the rank that hangs")
        run.seen["hangs"] = run.verdicts("hang")
        run.until(lambda: run.state() == "degraded", "a job that is held up")
        run.stuck.unlink()
        run.until(lambda: run.state() == "running", "a job that goes on")
        run.evenkeel("jobs", "finish", run.job_id)
        yield run
    finally:
        for process in run.processes:
            process.kill()
            process.wait()


def test_the_death_is_one_verdict_and_its_victims_are_none(run: Run) -> None:
    (verdict,) = run.seen["losses"]
    assert verdict["kind"] == "fail_stop"
    assert verdict["culprits"][0].startswith(f"rank {VICTIM} ")


def test_the_job_says_that_it_gets_advice_only_and_that_it_is_degraded(run: Run) -> None:
    states = [(run.seen[when]["state"], run.seen[when]["reshapable"]) for when in ("healthy", "dead", "again")]
    assert states == [("running", False), ("degraded", False), ("running", False)]
    assert run.ask("SELECT state FROM job_events WHERE job_id = %s ORDER BY job_event_id") == [
        ("running",),
        ("degraded",),  # by the death
        ("running",),
        ("degraded",),  # by the hang
        ("running",),
        ("finished",),
    ]


def test_the_advice_is_a_plan_with_its_numbers_that_no_rank_was_told_of(run: Run) -> None:
    (plan,) = run.seen["plans"]
    assert plan["state"] == "advised"
    assert plan["predicted_seconds"] > 0.0
    text = run.seen["explained"]["text"]
    assert "No rank was told of it, it is advice" in text
    left = re.search(rf"Restart it without rank {VICTIM} \(2 of 3 devices, (\d+) % of the healthy speed\)", text)
    assert left, text
    assert 0 < int(left[1]) <= 67, "two thirds, or less where one of the others is slow"
    assert {
        state for (state,) in run.ask("SELECT state FROM plan_events JOIN plans USING (plan_id) WHERE job_id = %s")
    } == {"advised", "proposed"}


def test_the_verdict_says_what_to_do(run: Run) -> None:
    (note,) = run.seen["loss"]["notes"]
    assert f"Rank {VICTIM} " in note
    assert "no elastic engine" in note
    assert run.ask("SELECT notes FROM current_incidents WHERE job_id = %s AND kind = 'fail_stop'") == [([note],)]


def test_the_incident_is_over_when_the_loop_was_started_again(run: Run) -> None:
    deaths = [incident for incident in run.seen["incidents"] if incident["kind"] in LOSSES]
    assert deaths
    assert all(incident["resolved_at"] is not None for incident in deaths)


def test_a_rank_that_hangs_and_goes_on_talking_is_told_from_those_that_wait_for_it(run: Run) -> None:
    (verdict,) = run.seen["hangs"]
    assert verdict["culprits"][0].startswith(f"rank {STUCK} ")


def test_no_record_of_such_a_job_is_refused(run: Run) -> None:
    logs = "".join(log.read_text() for log in (run.stack.folder / "logs").glob("*.log"))
    assert "records rejected" not in logs
