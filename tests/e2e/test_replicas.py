"""Replicas of a user's own loop beside the services: a slow one gets fewer micro-batches, a dead one's place is kept.

Real parts: the stack, and three processes with real rank controllers, one of which gets a small share of a core.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import torch.distributed as dist

from benchmarks.speed.quota import cores
from evenkeel.stack.stack import Stack
from tests.e2e.live_run import PATIENCE_SECONDS, evenkeel, new_folder
from tests.warm import WarmProgram

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

LOOP = Path(__file__).parent / "loops" / "replica_loop.py"
NUM_REPLICAS, NUM_MICRO_BATCHES = 3, 12
SLOW, DEAD = 1, 2
SHARE_OF_A_CORE = 0.03


class Job:
    """Three replicas, as their launchers start them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.folder = new_folder(stack, "replicas")
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        registered = self.evenkeel(
            *("jobs", "register", self.folder.name, "--ranks", str(NUM_REPLICAS)),
            *("--micro-batches", str(NUM_MICRO_BATCHES)),
        )
        self.settings = {**os.environ, **stack.addresses.environment(), **registered}
        self.processes: dict[int, WarmProgram] = {}
        self.all_processes: list[WarmProgram] = []

    def start(self, replica: int, incarnation: int = 0) -> None:
        settings = {
            **self.settings,
            "EVENKEEL_STORE": f"127.0.0.1:{self.store.port}",
            "EVENKEEL_REPLICA": str(replica),
            "EVENKEEL_NUM_REPLICAS": str(NUM_REPLICAS),
            "TORCHELASTIC_RESTART_COUNT": str(incarnation),
        }
        with (self.folder / f"replica-{replica}-{incarnation}.log").open("wb") as log:
            self.processes[replica] = WarmProgram(
                [sys.executable, LOOP, self.folder], env=settings, stdout=log, stderr=log
            )
        self.all_processes.append(self.processes[replica])

    def evenkeel(self, *arguments: str) -> Any:
        return evenkeel(self.stack, *arguments)

    def at(self, replica: int) -> tuple[int, int]:
        """Its newest step, and how many micro-batches it ran there."""
        note = self.folder / f"at-{replica}"
        step, ran = note.read_text().split() if note.exists() else ("-1", "0")
        return int(step), int(ran)

    def shares(self) -> list[int]:
        return [self.at(replica)[1] for replica in range(NUM_REPLICAS)]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < ends, f"waited in vain: {what}; {self.shares()}, {self.plans()}"
            time.sleep(1.0)

    def planned(self) -> list[set[int]]:
        """Ranks that each plan has."""
        with psycopg.connect(self.stack.addresses.database_url, connect_timeout=60) as connection:
            rows = connection.execute("SELECT layout FROM plans WHERE job_id = %s", (self.folder.name,)).fetchall()
        return [
            {rank for replica in layout["replicas"] for stage in replica["stages"] for rank in stage["ranks"]}
            for (layout,) in rows
        ]

    def plans(self) -> list[Any]:
        return list(self.evenkeel("plans", "list", "--job", self.folder.name))

    def describe(self) -> Any:
        return self.evenkeel("jobs", "describe", self.folder.name)


@pytest.fixture
def job(stack: Stack) -> Iterator[Job]:
    job = Job(stack)
    try:
        for replica in range(NUM_REPLICAS):
            job.start(replica)
        yield job
    finally:
        for process in job.all_processes:
            process.kill()
            process.wait()


def share_in(plan: Any, replica: int) -> int:
    """Micro-batches that a plan gives a replica; 0 for one that it leaves out."""
    shares = {int(rank): int(share) for share, rank in re.findall(r"(\d+)x [^|]*\[(\d+)\]", plan["layout"])}
    assert sum(shares.values()) == NUM_MICRO_BATCHES, plan["layout"]
    return shares.get(replica, 0)


def test_plans_move_micro_batches_and_history_has_deaths_and_returns(job: Job) -> None:
    job.until(lambda: job.at(0)[0] >= 50, "healthy steps")
    assert job.describe()["reshapable"]
    with ExitStack() as slow:
        try:
            slow.enter_context(cores([job.processes[SLOW].pid], SHARE_OF_A_CORE))
        except OSError as error:
            pytest.skip(f"no process can be given a share of a core here: {error}")
        job.until(lambda: job.shares()[SLOW] < 3, "fewer micro-batches for the slow one")
        job.until(lambda: sum(job.shares()) == NUM_MICRO_BATCHES, "a step with all micro-batches")
    (plan, *_) = [each for each in job.plans() if share_in(each, SLOW) < 3]
    assert plan["predicted_seconds"] < plan["idle_seconds"]
    job.processes[DEAD].kill()
    job.until(lambda: any(DEAD not in ranks for ranks in job.planned()), "a plan without the dead one")
    assert any(share_in(each, DEAD) == 0 for each in job.plans())
    step = job.at(0)[0]
    job.until(lambda: job.at(0)[0] >= step + 5, "steps without it")
    job.start(DEAD, incarnation=1)
    job.until(lambda: job.at(DEAD)[0] > step + 5 and job.shares()[DEAD] > 0, "its return")
    job.until(lambda: job.describe()["ranks_training"] == NUM_REPLICAS, "all to train, by the scheduler's word")
    incidents = job.evenkeel("incidents", "list", "--job", job.folder.name)
    deaths = [each for each in incidents if each["kind"] in ("fail_stop", "hang", "program_error")]
    assert deaths
    assert all(each["resolved_at"] for each in deaths)
    (job.folder / "end").touch()
    job.evenkeel("jobs", "finish", job.folder.name)
