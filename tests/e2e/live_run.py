"""A live job beside the services, and what a test asks of it while it runs and afterwards."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from typer.testing import CliRunner

from evenkeel.cli.main import app
from evenkeel.stack.paths import checkout_root
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json
from evenkeel.trainer_sdk.elastic.model.model import model_spec
from evenkeel.trainer_sdk.launcher.description.job_file import load_job
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.launcher import Launcher

PATIENCE_SECONDS = 600.0
"""As the slowest machine needs: eight processes load their libraries for minutes where others want the processors."""
NARROW_HEAD_DIM = 4
"""Half the width: a quarter of the work that the machine has to do, at whatever speed the devices are said to be."""
LOOK_SECONDS = 1.0
"""Between two looks at what is waited for: each asks the database, on a connection of its own."""
_NUM_LAST_LINES = 12
_LONGEST_PART = 300


def new_folder(stack: Stack, name: str) -> Path:
    """A folder for a job, whose id is its name: a test that is run once more must not meet the job that it ended."""
    for number in itertools.count(1):
        folder = stack.folder / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always one more number")


def evenkeel(stack: Stack, *arguments: str) -> Any:
    """What a command says of a stack. Run here: a process of its own loads for most of a second of a processor."""
    command = ["-o", "json", "--stack", stack.name, *arguments]
    said = CliRunner().invoke(app, command, catch_exceptions=False)
    assert said.exit_code == 0, f"{arguments}: {said.output}"
    return json.loads(said.stdout or "null")


def example_job(stack: Stack, name: str) -> JobSpec:
    """The example's job on a stack."""
    folder = new_folder(stack, name)
    environment = {**stack.addresses.environment(), "EVENKEEL_JOB_ID": folder.name}
    spec, _ = load_job(checkout_root() / "examples/hybrid/job.json", environment, folder)
    return replace(spec, logs_to_files=True)


def narrowed(spec: JobSpec) -> JobSpec:
    """The same job with a narrower model on slower devices: its pace is the same, and easier to keep here.

    Not where stages have few layers each: the head is more of a narrow model, so that stages differ.
    """
    narrow = {**spec.config, "model": {**spec.config["model"], "head_dim": NARROW_HEAD_DIM}}
    less = _forward_flops(config_from_json(narrow)) / _forward_flops(config_from_json(spec.config))
    return replace(spec, config=narrow, flops_per_second=less * spec.flops_per_second)


def _forward_flops(config: TrainingConfig) -> float:
    """Of a micro-batch as it is on average."""
    tokens = config.workload.token_budget
    squares = tokens * config.workload.median_document_length
    return sum(block.forward_flops(tokens, squares) for block in model_spec(config).blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """A plan of the job as the history has it; measured seconds are None where another one came before its effect."""

    epoch: int
    layout: dict[str, Any]
    levers: frozenset[str]
    idle_seconds: float
    predicted_seconds: float
    measured_seconds: float | None
    states: frozenset[str]


@dataclass
class LiveRun:
    """A stack with a job.

    On a busy machine a plan may be overtaken by a better one before it is measured, and a rank that nobody slowed down
    may be slow for a while and be called so, rightly: ask for the plan that did something, not for the first.
    """

    stack: Stack
    launcher: Launcher

    def ask(self, sql: LiteralString, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of the history; the statement's first parameter is the job."""
        with psycopg.connect(self.stack.addresses.database_url, connect_timeout=60) as connection:
            return connection.execute(sql, (self.launcher.spec.job_id, *arguments)).fetchall()

    def iteration(self) -> int:
        """Newest iteration that a rank has noted; -1 = none yet."""
        note = self.launcher.progress.newest()
        return -1 if note is None else note.iteration

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Waits; returns for how many seconds. A database that is away is asked again."""

        def holds() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                return condition()
            return False

        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < PATIENCE_SECONDS, f"waited in vain: {what}\n{self.told()}"
            assert self.launcher.wait(LOOK_SECONDS) is None, "the job ended"
        return time.monotonic() - began

    def told(self) -> str:
        """What the services said last, for whoever reads that a test failed."""
        logs = sorted(self.stack.log_folder.glob("*.log"))
        tails = {log.name: log.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:] for log in logs}
        return "\n".join(f"{name}: {_shortened(line)}" for name, lines in tails.items() for line in lines)

    def plans(self) -> list[MadePlan]:
        """Every plan with its levers and states, by epoch."""
        rows = self.ask(
            "SELECT p.epoch, p.layout, ARRAY(SELECT lever FROM plan_actions WHERE plan_id = p.plan_id), "
            "p.idle_seconds, p.predicted_seconds, max(e.measured_seconds), array_agg(e.state) "
            "FROM plans p JOIN plan_events e USING (plan_id) WHERE p.job_id = %s GROUP BY p.plan_id ORDER BY p.epoch"
        )
        return [
            MadePlan(
                epoch=epoch,
                layout=layout,
                levers=frozenset(levers),
                idle_seconds=idle_seconds,
                predicted_seconds=predicted_seconds,
                measured_seconds=measured_seconds,
                states=frozenset(states),
            )
            for epoch, layout, levers, idle_seconds, predicted_seconds, measured_seconds, states in rows
        ]

    def measured_plan(self, is_wanted: Callable[[MadePlan], bool]) -> MadePlan:
        """Waits for a plan of this kind that was applied and whose effect is known; the first such one."""

        def found() -> list[MadePlan]:
            return [plan for plan in self.plans() if plan.measured_seconds is not None and is_wanted(plan)]

        self.until(lambda: bool(found()), "a plan of the wanted kind, applied and measured")
        return found()[0]

    def idle_seconds(self, plan: MadePlan) -> float:
        """What an iteration would have taken without a plan and those that it overtook."""
        return max(each.idle_seconds for each in self.plans() if each.epoch <= plan.epoch)

    def accused(self) -> set[tuple[str, int]]:
        """Kind and rank of everybody whom a verdict named."""
        return set(
            self.ask(
                "SELECT DISTINCT v.kind, c.rank FROM verdicts v JOIN verdict_culprits c USING (verdict_id) "
                "WHERE v.job_id = %s"
            )
        )

    def lost(self) -> set[int]:
        """Ranks that were taken for dead or stuck."""
        return {rank for kind, rank in self.accused() if kind in ("fail_stop", "hang")}


def _shortened(line: str) -> str:
    """A line of a log with its end: that is where an exception is named."""
    return line if len(line) <= 2 * _LONGEST_PART else f"{line[:_LONGEST_PART]} ... {line[-_LONGEST_PART:]}"
