"""One performance of the scenario on a running stack: job, recorder, director, live view, then what was observed.

Runs on one event loop. Whatever happens, the job and the reference run have ended when :func:`perform` returns.
"""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg

from evenkeel.demo.live import View
from evenkeel.demo.observed.history_reader import read_decided, read_history
from evenkeel.demo.observed.observations import HistoryFacts, Observations
from evenkeel.demo.observed.recorder import recording
from evenkeel.demo.observed.run_log import RunLog
from evenkeel.demo.observed.snapshot import SnapshotMaker
from evenkeel.demo.reference import Reference, reference_run
from evenkeel.demo.script.director import Director
from evenkeel.demo.script.job import MainJob, main_job
from evenkeel.demo.script.scenario import LONG_DOCUMENTS, Step, choose_cast, script
from evenkeel.demo.script.stage_hands import StageHands
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.config import config_to_json
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.launcher import Launcher

ENTRY_POINT = "evenkeel.trainer_sdk.elastic.worker:train"
REDRAW_SECONDS = 0.5
LAST_WORDS_SECONDS = 1.5
"""At least so long the recording goes on after the last step of the script."""
LAST_WORDS_PATIENCE_SECONDS = 60.0
"""For verdicts and plan states that are still on their way to Kafka or to SQL; they come late on a busy machine."""
ROLLUP_WAIT_SECONDS = 75.0
"""Longer than telemetry keeps a window open whose process ended without a word."""
REFERENCE_PATIENCE_SECONDS = 60.0
"""For one more loss of the failure-free run: on a busy machine it comes late, and it comes."""


async def perform(
    stack: Stack,
    seed: int,
    view: View,
    folder: Path,
    *,
    steps: Sequence[Step] | None = None,
    dtype: str = "float32",
) -> Observations:
    """Play the scenario once.

    Args:
        stack: Running, with its services.
        seed: Decides the model, the samples and the victims.
        view: Shows what happens.
        folder: Gets the job's files: its state, the speed table, the ranks' logs.
        steps: Another script than the demo's.
        dtype: What the job computes in.

    Raises:
        RuntimeError: The job or the reference run did not start.
    """
    job_id = f"demo-{seed}-{secrets.token_hex(4)}"
    job = main_job(job_id, seed, dtype=dtype)
    log = RunLog(job_id=job_id)
    num_ranks = len(job.layout.ranks)
    shutil.rmtree(folder, ignore_errors=True)
    steps = script(choose_cast(seed, num_ranks), num_ranks) if steps is None else steps
    async with reference_run(job.config) as reference:
        director, ended_at = await _run_job(stack, job, log, steps, view, folder)
        last = max(log.last_iteration, 0)
        await reference.hurry()
        view.note("reading the history back by SQL, waiting for the failure-free run")
        history, losses = await asyncio.gather(
            asyncio.to_thread(_history, stack.addresses.database_url, log, last - 1, ended_at),
            _reference_losses(reference, last + 1),
        )
    return Observations(
        log=log,
        truths=tuple(director.truths),
        outcomes=tuple(director.outcomes),
        model=job.model,
        layout=job.layout,
        flops_per_second=job.flops_per_second,
        reference_losses=losses,
        history=history,
        long_documents=LONG_DOCUMENTS,
    )


async def _run_job(
    stack: Stack, job: MainJob, log: RunLog, steps: Sequence[Step], view: View, folder: Path
) -> tuple[Director, float]:
    """The job from its first process to its last; returns the director and when its script ended."""
    launcher = Launcher(job_spec(stack, job, folder), job.model)
    director = Director(log, StageHands(stack, launcher), on_step=lambda step: view.note(step.title))
    try:
        async with recording(stack.addresses.kafka_bootstrap_servers, log):
            view.note("starting 8 ranks")
            await _started(launcher)
            async with _showing(view, SnapshotMaker(log, job.model, job.layout), director):
                await director.play(steps)
                ended_at = time.time()
                await _last_words(stack.addresses.database_url, log, ended_at)
    finally:
        await asyncio.shield(asyncio.to_thread(launcher.stop))
    return director, ended_at


async def _started(launcher: Launcher) -> None:
    """Start the job; cancelled meanwhile, stop it and wait until neither call is on its way any more."""
    starting = asyncio.ensure_future(asyncio.to_thread(launcher.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.to_thread(launcher.stop)
        with suppress(Exception):
            await starting
        raise


async def _last_words(database_url: str, log: RunLog, ended_at: float) -> None:
    """Wait until Kafka and SQL have told the same of the time before; a difference that stays is an expectation's."""
    await asyncio.sleep(LAST_WORDS_SECONDS)
    with suppress(TimeoutError, psycopg.OperationalError):
        async with asyncio.timeout(LAST_WORDS_PATIENCE_SECONDS):
            # Neither Kafka nor SQL has an event for it.
            while await asyncio.to_thread(read_decided, database_url, log.job_id, ended_at) != log.decided(ended_at):  # noqa: ASYNC110
                await asyncio.sleep(REDRAW_SECONDS)


@asynccontextmanager
async def _showing(view: View, maker: SnapshotMaker, director: Director) -> AsyncIterator[None]:
    """While inside, the view is redrawn."""

    async def redraw() -> None:
        while True:
            view.show(maker.make(time.time(), director.truths))
            await asyncio.sleep(REDRAW_SECONDS)

    task = asyncio.create_task(redraw(), name="view")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def job_spec(stack: Stack, job: MainJob, folder: Path) -> JobSpec:
    """What the launcher needs to run ``job`` on a stack, with its files in ``folder``."""
    addresses = stack.addresses
    return JobSpec(
        job_id=job.config.job_id,
        entry_point=ENTRY_POINT,
        layout=job.layout,
        config=config_to_json(job.config),
        run_dir=folder,
        name="demo: byte-level GPT, TP 2 x PP 2 x DP 2",
        flops_per_second=job.flops_per_second,
        kafka_bootstrap_servers=addresses.kafka_bootstrap_servers,
        fleet_address=addresses.fleet_address,
        fleet_token=addresses.fleet_token,
        job_token=secrets.token_urlsafe(24),
        logs_to_files=True,
    )


def _history(database_url: str, log: RunLog, last_iteration: int, ended_at: float) -> HistoryFacts | None:
    try:
        return read_history(
            database_url,
            log.job_id,
            processes=frozenset((one.rank, one.incarnation, one.epoch) for one in log.samples_of(last_iteration)),
            last_iteration=last_iteration,
            until=ended_at,
            wait_seconds=ROLLUP_WAIT_SECONDS,
        )
    except psycopg.OperationalError:
        return None


async def _reference_losses(reference: Reference, count: int) -> tuple[float, ...]:
    """The losses, for as long as they come; an expectation says how many are missing."""
    with suppress(TimeoutError):
        while len(reference.losses) < count:
            async with asyncio.timeout(REFERENCE_PATIENCE_SECONDS):
                await reference.read_until(len(reference.losses) + 1)
    return tuple(reference.losses[:count])
