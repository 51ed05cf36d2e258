"""Cases on a live job, one after the other: eight ranks on emulated devices, two of each service, everything real."""

import asyncio
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.faults.cells import FROZEN_SECONDS, Cell, Fault
from benchmarks.faults.strikes import ENTRY_POINT, FILE_NAME, StrikeTable
from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.recorder import recording
from evenkeel.demo.observed.run_log import RunLog
from evenkeel.demo.observed.timeline import CommittedIteration
from evenkeel.demo.performance import job_spec
from evenkeel.demo.reference import reference_run
from evenkeel.demo.report.summary import loss_differences, samples_lost, samples_repeated
from evenkeel.demo.script.conditions import Moment, ShapeReached
from evenkeel.demo.script.job import MainJob, main_job
from evenkeel.stack.processes.faults import frozen
from evenkeel.stack.services import fleet_address_of, is_healthy
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.elastic.config import CheckpointConfig
from evenkeel.trainer_sdk.launcher import inject
from evenkeel.trainer_sdk.launcher.launcher import Launcher

NUM_RANKS = 8
_CALM_ITERATIONS = 3
_PATIENCE_SECONDS = 180.0
_MOMENT_SECONDS = 30.0
"""For a rank to get to the moment at which it is to fail; not every plan moves slices of every rank."""
_NUM_MICRO_BATCHES, _FASTER = 4, 1.5
"""An iteration of 0.4 s in place of the demo's second: two slow cores still keep the devices' speeds."""
_CHECKPOINT_ITERATIONS = 5
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What came of one case; ``problem`` is empty where the job was whole again.

    Attributes:
        came: Whether the moment came at which a rank was to fail.
    """

    cell: Cell
    began_at: float
    ended_at: float
    problem: str = ""
    came: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole run.

    Attributes:
        cases: In order.
        lost_seconds: Of each case: its longest time between two optimizer steps, minus a healthy iteration.
        healthy_seconds: Median iteration before the first case.
        loss_difference: Largest relative difference from the failure-free run.
        samples_lost, samples_repeated: Over the whole run.
    """

    cases: tuple[Case, ...]
    lost_seconds: tuple[float | None, ...]
    healthy_seconds: float
    loss_difference: float
    samples_lost: int
    samples_repeated: int


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of several jobs."""
    return Outcome(
        cases=tuple(case for one in outcomes for case in one.cases),
        lost_seconds=tuple(lost for one in outcomes for lost in one.lost_seconds),
        healthy_seconds=median(one.healthy_seconds for one in outcomes),
        loss_difference=max(one.loss_difference for one in outcomes),
        samples_lost=sum(one.samples_lost for one in outcomes),
        samples_repeated=sum(one.samples_repeated for one in outcomes),
    )


async def run(
    stack: Stack, wanted: deque[tuple[Cell, float, float]], folder: Path, seed: int, *, until_seconds: float = math.inf
) -> Outcome:
    """Plays cases on one job and a stack of two instances, and takes them from those that are wanted.

    Stops at the first after which the job is not whole again, and begins none after ``until_seconds`` (monotonic).
    """
    job = _job(seed, folder)
    log, done = RunLog(job_id=job.config.job_id), list[Case]()
    launcher = Launcher(replace(job_spec(stack, job, folder), entry_point=ENTRY_POINT), job.model)
    strikes = StrikeTable.create(folder / FILE_NAME, NUM_RANKS)
    async with reference_run(job.config) as reference:
        try:
            async with recording(stack.addresses.kafka_bootstrap_servers, log):
                await asyncio.to_thread(launcher.start)
                live = _Live(stack, launcher, log, strikes)
                await live.until_whole(_CALM_ITERATIONS)
                while wanted and time.monotonic() < until_seconds:
                    cell, delay_seconds, gap_seconds = wanted.popleft()
                    await asyncio.sleep(delay_seconds)
                    done.append(await live.play(cell, gap_seconds))
                    said = "whole again" if done[-1].came else "the moment did not come"
                    print(f"{cell}: {done[-1].problem or said}", flush=True)
                    if done[-1].problem:
                        break
                await asyncio.sleep(2.0)
        finally:
            await asyncio.to_thread(launcher.stop)
        await reference.hurry()
        losses = await reference.read_until(max(log.last_iteration, 0) + 1)
    seen = Observations(
        log=log,
        truths=(),
        outcomes=(),
        model=job.model,
        layout=job.layout,
        flops_per_second=job.flops_per_second,
        reference_losses=losses,
        history=None,
    )
    first_at = min((case.began_at for case in done), default=float("inf"))
    healthy = median(one.seconds for one in seen.iterations if one.seconds is not None and one.committed_at < first_at)
    return Outcome(
        cases=tuple(done),
        lost_seconds=tuple(_lost_seconds(case, seen.iterations, healthy) for case in done),
        healthy_seconds=healthy,
        loss_difference=max((difference for _, difference in loss_differences(seen)), default=float("nan")),
        samples_lost=samples_lost(seen),
        samples_repeated=samples_repeated(seen),
    )


def _job(seed: int, folder: Path) -> MainJob:
    """The demo's job in shorter iterations, with checkpoints often enough to be struck while they are written."""
    folder.mkdir(parents=True, exist_ok=True)
    job = main_job(f"faults-{os.getpid()}-{folder.name}", seed, num_micro_batches=_NUM_MICRO_BATCHES)
    kept = CheckpointConfig(directory=str(folder / "checkpoints"), every_iterations=_CHECKPOINT_ITERATIONS)
    config = replace(job.config, checkpoint=kept)
    return replace(job, config=config, flops_per_second=_FASTER * job.flops_per_second)


def _lost_seconds(case: Case, iterations: Iterable[CommittedIteration], healthy_seconds: float) -> float | None:
    within = [one for one in iterations if case.began_at <= one.committed_at <= case.ended_at]
    return max((one.seconds - healthy_seconds for one in within if one.seconds is not None), default=None)


class _Live:
    """A running job on a running stack."""

    def __init__(self, stack: Stack, launcher: Launcher, log: RunLog, strikes: StrikeTable) -> None:
        self._stack, self._launcher, self._log, self._strikes = stack, launcher, log, strikes

    async def play(self, cell: Cell, gap_seconds: float) -> Case:
        """The faults, then what puts an end to them, then until the job is whole again."""
        began = self._moment()
        problem, came = "", True
        try:
            with ExitStack() as until_over:
                process_ids = self._processes_of(cell) if cell.service else []
                if cell.witness is None:
                    _fail_service(process_ids, cell.how, until_over)
                    await asyncio.sleep(gap_seconds if process_ids else 0.0)
                if cell.when is not None:
                    came = await self._fail_at(cell)
                    if came and cell.witness is not None:
                        _fail_service(process_ids, cell.how, until_over)
                else:
                    for number, rank in enumerate(cell.ranks):
                        await asyncio.sleep(gap_seconds if number else 0.0)
                        self._fail(rank, cell.fault)
                if cell.how is Fault.STOP:
                    await asyncio.sleep(FROZEN_SECONDS)
            if cell.ranks and (came or cell.witness is not None):
                await self._until(lambda: self._log.last_epoch > began.epoch, "a new layout")
            now = self._moment()
            await self._until(lambda: self._log.last_iteration >= now.iteration + 3, "three more iterations")
            for rank in cell.ranks:
                if cell.fault is Fault.HALF_SPEED:
                    inject.slow(self._launcher.spec.run_dir, rank, 1.0)
                elif came or cell.joins or cell.witness is not None or rank != cell.ranks[-1]:
                    await asyncio.to_thread(self._launcher.restart, rank)
            await self.until_whole(_CALM_ITERATIONS)
        except TimeoutError as error:
            problem = str(error)
        return Case(cell=cell, began_at=began.at, ended_at=time.time(), problem=problem, came=came)

    async def until_whole(self, num_iterations: int) -> None:
        """All ranks train, all services are well, and that for so many iterations."""
        whole = ShapeReached(NUM_RANKS)
        now = self._moment()
        await self._until(lambda: whole.holds(self._log, now), f"{NUM_RANKS} ranks to train")
        ports = self._stack.addresses.metrics_ports.values()
        await self._until(lambda: all(map(is_healthy, ports)), "the services to be well")
        now = self._moment()
        await self._until(lambda: self._log.last_iteration >= now.iteration + num_iterations, "calm iterations")

    def _fail(self, rank: int, fault: Fault) -> None:
        run_dir = self._launcher.spec.run_dir
        if fault is Fault.HALF_SPEED:
            inject.slow(run_dir, rank, 0.5)
        else:
            {Fault.KILL: inject.kill, Fault.STOP: inject.stop, Fault.HANG: inject.hang}[fault](run_dir, rank)

    async def _fail_at(self, cell: Cell) -> bool:
        """Let the last of the ranks fail at its moment, or the witness get there; whether that came."""
        assert cell.when is not None, "a case at a moment"
        *others, rank = cell.ranks if cell.witness is None else (*cell.ranks, cell.witness)
        if cell.joins:
            epoch = self._log.last_epoch
            self._fail(rank, Fault.KILL)
            await self._until(lambda: self._log.last_epoch > epoch, "a layout without it")
        self._strikes.arm(rank, cell.when, cell.fault if cell.witness is None else None)
        for other in others:
            self._fail(other, Fault.KILL)
        if cell.joins:
            await asyncio.to_thread(self._launcher.restart, rank)
        try:
            await self._until(lambda: not self._strikes.is_armed(rank), "the moment", _MOMENT_SECONDS)
        except TimeoutError:
            return not self._strikes.disarm(rank)
        return True

    def _processes_of(self, cell: Cell) -> list[int]:
        process_ids = {**self._stack.service_process_ids, **self._stack.server_process_ids}
        name = cell.service
        if name == "scheduler":
            with psycopg.connect(self._stack.addresses.database_url) as connection:
                row = connection.execute("SELECT address FROM leases WHERE name = 'scheduler'").fetchone()
            names = ("scheduler", "scheduler-2")
            name = next(one for one in names if row and fleet_address_of(one, self._stack.addresses) == row[0])
        found = [name, *(one for one in process_ids if cell.both and one != name and one.startswith(cell.service))]
        return [process_ids[one] for one in found]

    def _moment(self) -> Moment:
        return Moment(at=time.time(), iteration=self._log.last_iteration + 1, epoch=max(self._log.last_epoch, 0))

    async def _until(self, holds: Callable[[], bool], what: str, seconds: float = _PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(holds):
            status = self._launcher.wait(0.0)
            if status is not None:
                raise TimeoutError(f"the job ended with status {status}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
            await asyncio.sleep(_POLL_SECONDS)


def _fail_service(process_ids: Iterable[int], how: Fault, until_over: ExitStack) -> None:
    for process_id in process_ids:
        if how is Fault.KILL:
            os.kill(process_id, signal.SIGKILL)
        else:
            until_over.enter_context(frozen(process_id))
