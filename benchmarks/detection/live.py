"""Random faults on a live job, then healthy work: ``python -m benchmarks.detection.live``.

The demo's job on the demo's stack: 8 ranks (TP 2 x PP 2 x DP 2) on emulated devices, documents of varied length with
stretches of long ones. Kind, victim, size and moment of every fault are random. Prints a line per fault, then a table
of what was found, who was accused wrongly, and how long it took. JSON goes to ``--out`` after every fault and every
minute of healthy work; ``--resume`` goes on from it, on a new job, where a campaign was stopped.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from benchmarks.detection.faults import AFTERMATH_SECONDS, Fault, Finding, draw_faults, finding_of
from benchmarks.detection.live_report import LIVE, LiveReport, in_words
from evenkeel.demo.observed.recorder import recording
from evenkeel.demo.observed.run_log import RunLog, VerdictSeen
from evenkeel.demo.performance import job_spec
from evenkeel.demo.script.conditions import IterationsPassed, IterationsUnderNewEpoch, Moment, ShapeReached
from evenkeel.demo.script.job import MainJob, main_job
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.stack.stack import Stack
from evenkeel.trainer_sdk.launcher import inject
from evenkeel.trainer_sdk.launcher.launcher import Launcher

NUM_RANKS = 8
POLL_SECONDS = 0.05
LEARNING_ITERATIONS = 30
FIND_SECONDS = 60.0
HEAL_SECONDS = 60.0
HEALTHY_SLICE_SECONDS = 60.0
LONG_STRETCH_ITERATIONS = 8
LONG_STRETCH_EVERY = 90


class Campaign:
    """One job under a list of faults. Event loop's thread; injections are quick file writes and signals.

    Args:
        launcher: Runs the job.
        log: What an outside observer sees of it.
        say: Told of each fault as it ends.
    """

    def __init__(self, launcher: Launcher, log: RunLog, say: Callable[[str], None]) -> None:
        self._launcher = launcher
        self._log = log
        self._say = say
        self._run_dir = launcher.spec.run_dir
        self.findings: list[Finding] = []

    async def learn(self) -> None:
        """Wait until the detector has seen the healthy job for a while."""
        await self._until(lambda: self._log.last_iteration >= LEARNING_ITERATIONS, 180.0)

    async def suffer(self, fault: Fault) -> Finding:
        """Put one fault in, see what is found, and make the job whole again."""
        await asyncio.sleep(fault.delay_seconds)
        began = self._moment()
        self._inject(fault)
        await self._until(lambda: finding_of(fault, began, self._log.verdicts) is not None, FIND_SECONDS)
        whole = await self._heal(fault, began, finding_of(fault, began, self._log.verdicts))
        finding = Finding.of(fault, began, self._log.verdicts, ended_at=time.time(), whole_again=whole)
        self.findings.append(finding)
        self._say(finding.line())
        return finding

    async def stay_healthy(self, seconds: float) -> int:
        """Nothing is done for ``seconds``; returns how many iterations passed."""
        first = self._log.last_iteration
        await self._until(lambda: False, seconds)
        return self._log.last_iteration - first

    def _inject(self, fault: Fault) -> None:
        match fault.kind.value:
            case "slow":
                inject.slow(self._run_dir, fault.rank, fault.throughput)
            case "kill":
                inject.kill(self._run_dir, fault.rank)
            case "stop":
                inject.stop(self._run_dir, fault.rank)
            case _:
                inject.hang(self._run_dir, fault.rank)

    async def _heal(self, fault: Fault, began: Moment, verdict: VerdictSeen | None) -> bool:
        if fault.kind.value == "slow":
            inject.slow(self._run_dir, fault.rank, 1.0)
            healed = self._moment()
            if verdict is None:
                return await self._settled(healed)
            recovered = await self._until(lambda: self._said(VerdictKind.RECOVERED, fault.rank, healed), HEAL_SECONDS)
            return await self._settled(healed) and recovered
        await self._until(lambda: IterationsUnderNewEpoch(2).holds(self._log, began), HEAL_SECONDS)
        if fault.kind.value == "hang":
            inject.release(self._run_dir, fault.rank)
        replaced = self._moment()
        self._launcher.restart(fault.rank)
        back = await self._until(lambda: self._said(VerdictKind.REJOINED, fault.rank, replaced), HEAL_SECONDS)
        return await self._settled(replaced) and back

    async def _settled(self, since: Moment) -> bool:
        full, passed = ShapeReached(NUM_RANKS), IterationsPassed(8)
        return await self._until(lambda: full.holds(self._log, since) and passed.holds(self._log, since), HEAL_SECONDS)

    def _said(self, kind: VerdictKind, rank: int, since: Moment) -> bool:
        return any(
            verdict.kind == kind and verdict.names(rank) and verdict.decided_at >= since.at
            for verdict in self._log.verdicts
        )

    def _moment(self) -> Moment:
        return Moment(at=time.time(), iteration=self._log.last_iteration + 1, epoch=max(self._log.last_epoch, 0))

    async def _until(self, holds: Callable[[], bool], timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while not holds():
            if self._launcher.wait(timeout_seconds=0.0) is not None:
                raise RuntimeError(f"the job ended; its logs are in {self._run_dir}")
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def varied_job(job_id: str, seed: int) -> MainJob:
    """The demo's job with a stretch of long documents every now and then, at random places."""
    job = main_job(job_id, seed)
    rng = random.Random(seed)
    starts = [first + rng.randrange(LONG_STRETCH_EVERY // 2) for first in range(40, 50_000, LONG_STRETCH_EVERY)]
    stretches = tuple((start, start + LONG_STRETCH_ITERATIONS) for start in starts)
    return replace(job, config=replace(job.config, workload=replace(job.config.workload, long_stretches=stretches)))


async def run_campaign(stack: Stack, before: LiveReport, faults: Sequence[Fault], healthy: float, out: Path) -> None:
    """The rest of a campaign on one job.

    Args:
        stack: Running, with its services.
        before: What was found by earlier jobs of the campaign.
        faults: All faults of the campaign; as many as ``before`` knows are passed over.
        healthy: Seconds of healthy work in the whole campaign.
        out: Gets the report after every fault and every minute of healthy work.
    """
    job = varied_job(f"campaign-{before.seed}-{int(time.time())}", before.seed)
    log = RunLog(job_id=job.config.job_id)
    launcher = Launcher(job_spec(stack, job, stack.folder / "job"), job.model)
    campaign = Campaign(launcher, log, lambda line: print(line, flush=True))
    began = time.time()
    healthy_since, healthy_seconds, healthy_iterations = float("inf"), 0.0, 0

    def keep() -> None:
        report = deepcopy(before)
        report.take(campaign.findings, log.verdicts)
        said = [in_words(verdict) for verdict in log.verdicts if verdict.decided_at >= healthy_since]
        report.healthy_verdicts += said
        report.healthy_seconds += healthy_seconds
        report.healthy_iterations += healthy_iterations
        report.iterations += log.last_iteration + 1
        report.minutes += (time.time() - began) / 60.0
        report.write(out)

    try:
        async with recording(stack.addresses.kafka_bootstrap_servers, log):
            await asyncio.to_thread(launcher.start)
            await campaign.learn()
            for fault in faults[len(before.findings) :]:
                await campaign.suffer(fault)
                keep()
            # What the last fault leaves to say is not said of healthy work.
            await campaign.stay_healthy(AFTERMATH_SECONDS)
            healthy_since = time.time()
            while before.healthy_seconds + healthy_seconds < healthy:
                seconds = min(HEALTHY_SLICE_SECONDS, healthy - before.healthy_seconds - healthy_seconds)
                healthy_iterations += await campaign.stay_healthy(seconds)
                healthy_seconds += seconds
                keep()
    finally:
        await asyncio.to_thread(launcher.stop)


def main() -> None:
    """Runs the campaign, prints the table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--healthy-minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on from what --out holds")
    parser.add_argument("--stack", default="campaign", help="name of the stack's folder")
    parser.add_argument("--out", type=Path, default=LIVE)
    options = parser.parse_args()
    before = LiveReport.read(options.out) if options.resume and options.out.exists() else LiveReport(seed=options.seed)
    if before.seed != options.seed:
        parser.error(f"{options.out} is of a campaign with --seed {before.seed}; give that seed or another --out")
    faults = draw_faults(options.faults, NUM_RANKS, options.seed)
    print(Finding.HEADER)
    with Stack(options.stack, keep_data=False) as stack:
        asyncio.run(run_campaign(stack, before, faults, 60.0 * options.healthy_minutes, options.out))
    print(LiveReport.read(options.out).table())


if __name__ == "__main__":
    main()
