"""What a false suspicion costs a job: ``python -m benchmarks.detection.aspects.suspicion_cost``.

The demo's job (8 ranks, TP 2 x PP 2 x DP 2, gloo, emulated devices, all healthy) runs twice over the same samples: left
alone, and with a suspicion of a random rank in every eighth iteration, at a random moment of it. The scheduler's own
prober asks both controllers over gRPC, and the ranks run the real probe at their iteration border. A suspicion's cost
is what the next two iterations took longer than the same two of the run left alone, less what the iterations around
them took longer anyway; the same figure of two iterations without a suspicion says how much of it is the machine's.

With ``--of links`` ranks have emulated links between them, all healthy, and suspicions are of links: of a random one,
within a stage or over a stage border, beside another of the same kind. With ``--of inner-links`` they are of links
inside groups of four, for which the ranks first build groups beside their work: that may take an iteration more.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.detection.aspects.probed_rank import CONTROLLER_TOKEN
from evenkeel.contracts.suspicion import SuspectedLink, Suspicion
from evenkeel.demo.script.job import ITERATION_SECONDS, MainJob, main_job
from evenkeel.services.common.metrics import create_registry
from evenkeel.services.detector.domain.links.watch import PROBE_SECONDS
from evenkeel.services.detector.domain.probes.suspicion import matrix_size_for
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.dispatch.protocol import Probe
from evenkeel.services.scheduler.leadership import Alone
from evenkeel.services.scheduler.metrics import SchedulerMetrics
from evenkeel.services.scheduler.serving.probing import REPETITIONS, Prober
from evenkeel.trainer_sdk.elastic.config import config_to_json
from evenkeel.trainer_sdk.elastic.program.topology import borders_of
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.launcher import Launcher

JOB_ID = "suspicion-cost"
LINK_BYTES_PER_SECOND = 1e8
"""Fast enough for the job, slow enough that copies on this machine are a small part of a transfer."""

_WARM_UP_ITERATIONS = 8
_CYCLE = 8
_WINDOW, _INNER_WINDOW = 2, 3
_QUIET_AFTER = 3
"""Of a cycle: asked for in iteration 0, a suspicion is paid for in 1 and 2; 4 and 5 are held against them. Of a link
inside a group, in 1 to 3, and 4 to 6 are."""
_JOB_SEED = 7
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One suspicion.

    Attributes:
        seconds: What the job lost by it.
        quiet_seconds: The same figure of two iterations that were left alone.
        suspect_seconds: All products on the suspect, or all ways there and back over it.
        peer_seconds: The same of its peer.
    """

    seconds: float
    quiet_seconds: float
    suspect_seconds: float
    peer_seconds: float

    @property
    def rest_seconds(self) -> float:
        """What is not the longer one's own: matrices made, two borders instead of one; below 0: others waited."""
        return self.seconds - max(self.suspect_seconds, self.peer_seconds)


class Suspects(StrEnum):
    """What suspicions are of."""

    DEVICES = "devices"
    LINKS = "links"
    INNER_LINKS = "inner-links"


class _TimedClient(RankClient):
    """Keeps what a probe's repetitions took together."""

    total_seconds = 0.0

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        seconds = await super().probe(probe, timeout_seconds)
        # The first way there and back is not told, since its begin is not clean.
        num_untold = 0 if probe.link is None else 1
        self.total_seconds = sum(seconds) * (len(seconds) + num_untold) / len(seconds)
        return seconds


class _Run:
    """A run of the job and what can be seen of it from outside."""

    def __init__(self, folder: Path, job: MainJob, num_iterations: int, of: Suspects) -> None:
        self.folder, self.ranks = folder, job.layout.ranks
        self.launcher = Launcher(
            JobSpec(
                job_id=JOB_ID,
                entry_point="benchmarks.detection.aspects.probed_rank:train",
                layout=job.layout,
                run_dir=folder,
                flops_per_second=job.flops_per_second,
                link_bytes_per_second=0.0 if of is Suspects.DEVICES else LINK_BYTES_PER_SECOND,
                config=config_to_json(replace(job.config, num_iterations=num_iterations)),
            )
        )

    def ended(self, rank: int) -> list[float]:
        """When each iteration of a rank ended so far, monotonic seconds."""
        path = self.folder / f"ended-{rank}"
        return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def seconds(self) -> np.ndarray:
        """How long each iteration took until its last rank was done; the first one is not told."""
        return np.diff(np.max([self.ended(rank) for rank in self.ranks], axis=0))


def plain_run(job: MainJob, num_iterations: int, of: Suspects) -> np.ndarray:
    """Seconds of each iteration of a run that is left alone."""
    with tempfile.TemporaryDirectory() as folder:
        run = _Run(Path(folder), job, num_iterations, of)
        with run.launcher as launcher:
            if launcher.wait(3600.0) != 0:
                raise RuntimeError("the run ended with an error: its ranks' output says why")
        return run.seconds()


def suspected_run(
    job: MainJob, num_iterations: int, of: Suspects, seed: int
) -> tuple[np.ndarray, list[tuple[int, float, float]]]:
    """A run with a suspicion a cycle.

    Returns:
        Seconds of each iteration; of each suspicion the iteration during which it was asked for, and what its products
        took on suspect and peer.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = _Run(Path(folder), job, num_iterations, of)
        with run.launcher as launcher:
            asked = asyncio.run(_suspect(run, job, num_iterations, of, random.Random(seed)))
            if launcher.wait(60.0) != 0:
                raise RuntimeError("the run ended with an error: its ranks' output says why")
        return run.seconds(), asked


async def _suspect(
    run: _Run, job: MainJob, num_iterations: int, of: Suspects, rng: random.Random
) -> list[tuple[int, float, float]]:
    while not run.ended(run.ranks[0]):  # noqa: ASYNC110 - it is another process's file
        await asyncio.sleep(_LOOK_SECONDS)
    clients = {
        rank: _TimedClient(
            job_id=JOB_ID,
            job_token=CONTROLLER_TOKEN,
            rank=rank,
            incarnation=0,
            address=(run.folder / f"address-{rank}").read_text(),
            leadership=Alone(),
        )
        for rank in run.ranks
    }
    prober = Prober(SchedulerMetrics(create_registry()))
    found, num_answered = [], 0
    for iteration in range(_WARM_UP_ITERATIONS, num_iterations - _CYCLE, _CYCLE):
        while len(run.ended(run.ranks[0])) < iteration:  # noqa: ASYNC110 - it is another process's file
            await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.sleep(rng.uniform(0.0, 0.8 * ITERATION_SECONDS))
        if of is Suspects.DEVICES:
            suspicion = _device_suspicion(job, iteration, rng)
        else:
            suspicion = _link_suspicion(job, iteration, rng, inner=of is Suspects.INNER_LINKS)
        answered = len(run.ended(run.ranks[0]))
        num_answered += await prober.answer(suspicion, clients) is not None
        suspect, peer = suspicion.rank, suspicion.peer_rank
        found.append((answered, clients[suspect].total_seconds, clients[peer].total_seconds))
    for client in clients.values():
        await client.close()
    if num_answered != len(found):
        raise RuntimeError(f"{len(found) - num_answered} of {len(found)} suspicions had no answer")
    return found


def _device_suspicion(job: MainJob, iteration: int, rng: random.Random) -> Suspicion:
    """Of a random rank, beside one that does the same work."""
    positions = dict(job.layout.positions())
    suspect = rng.choice(list(positions))
    same_work = [one for one, at in positions.items() if at.stage == positions[suspect].stage and one != suspect]
    return Suspicion(
        job_id=JOB_ID,
        rank=suspect,
        incarnation=0,
        peer_rank=rng.choice(same_work),
        peer_incarnation=0,
        iteration=iteration,
        at_unix_seconds=time.time(),
        matrix_size=matrix_size_for(1.0 / job.flops_per_second),
    )


def _link_suspicion(job: MainJob, iteration: int, rng: random.Random, *, inner: bool) -> Suspicion:
    """Of a random link, beside one of the same kind that is apart.

    It is within a stage or over a stage border; an inner one is between other shards of two replicas' same stage.
    """
    if inner:
        positions = list(job.layout.positions())
        links = sorted(
            (first, second)
            for first, at in positions
            for second, other in positions
            if first < second and at.stage == other.stage and at.replica != other.replica and at.shard != other.shard
        )
    else:
        stages = [stage.ranks for replica in job.layout.replicas for stage in replica.stages]
        within = [pair for ranks in stages for pair in pairwise(sorted(ranks))]
        borders = [(border.sender, border.receiver) for border in borders_of(job.layout)]
        over = sorted({(min(ends), max(ends)) for ends in borders})
        links = rng.choice([within, over])
    suspect = rng.choice(links)
    peer = rng.choice([link for link in links if not {*link} & {*suspect}])
    return Suspicion(
        job_id=JOB_ID,
        rank=suspect[0],
        incarnation=0,
        peer_rank=peer[0],
        peer_incarnation=0,
        iteration=iteration,
        at_unix_seconds=time.time(),
        link=SuspectedLink(
            partner_rank=suspect[1],
            partner_incarnation=0,
            peer_partner_rank=peer[1],
            peer_partner_incarnation=0,
            num_bytes=round(PROBE_SECONDS * LINK_BYTES_PER_SECOND),
        ),
    )


def costs_of(
    alone: np.ndarray, suspected: np.ndarray, asked: Sequence[tuple[int, float, float]], window: int = _WINDOW
) -> list[Cost]:
    """The cost of each suspicion; see the head of this module.

    Args:
        alone: Seconds of the iterations from the second on, of the run that was left alone.
        suspected: The same of the other run.
        asked: What :func:`suspected_run` gave.
        window: In how many iterations a suspicion is paid for.
    """
    longer = suspected - alone
    found = []
    for iteration, suspect_seconds, peer_seconds in asked:
        # Entry i is iteration i + 1: the first that can be longer is the one after that in which it was asked.
        paid = slice(iteration, iteration + window)
        quiet = slice(iteration + _QUIET_AFTER, iteration + _QUIET_AFTER + window)
        around = [*longer[max(iteration - 2, 0) : iteration], *longer[paid.stop : quiet.start], longer[quiet.stop]]
        anyway = window * median(around)
        found.append(
            Cost(
                seconds=float(longer[paid].sum() - anyway),
                quiet_seconds=float(longer[quiet].sum() - anyway),
                suspect_seconds=suspect_seconds,
                peer_seconds=peer_seconds,
            )
        )
    return found


def table(costs: Sequence[Cost], of: Suspects = Suspects.DEVICES) -> str:
    """What suspicions cost, and where it goes, in milliseconds."""
    what = f"{REPETITIONS} {'products on' if of is Suspects.DEVICES else 'ways there and back over'}"
    rows = {
        "a suspicion": [cost.seconds for cost in costs],
        "no suspicion": [cost.quiet_seconds for cost in costs],
        f"{what} the suspect": [cost.suspect_seconds for cost in costs],
        f"{what} the peer": [cost.peer_seconds for cost in costs],
        "the rest": [cost.rest_seconds for cost in costs],
    }
    lines = ["| ms | p50 | p95 | largest |", "|---|---|---|---|"]
    for name, seconds in rows.items():
        middle, high = 1e3 * np.quantile(seconds, [0.5, 0.95])
        lines.append(f"| {name} | {middle:.1f} | {high:.1f} | {1e3 * max(seconds):.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the pairs of runs, prints the table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suspicions", type=int, default=40, help="of each pair of runs")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--of", type=Suspects, choices=list(Suspects), default=Suspects.DEVICES)
    parser.add_argument("--out", type=Path, help="default: a file of the kind of suspects among the other results")
    options = parser.parse_args(arguments)
    of, job = options.of, main_job(JOB_ID, _JOB_SEED)
    job = replace(job, config=replace(job.config, workload=replace(job.config.workload, long_stretches=())))
    num_iterations = _WARM_UP_ITERATIONS + _CYCLE * (options.suspicions + 1)
    costs: list[Cost] = []
    for pair in range(options.pairs):
        alone = plain_run(job, num_iterations, of)
        suspected, asked = suspected_run(job, num_iterations, of, pair)
        costs += costs_of(alone, suspected, asked, _INNER_WINDOW if of is Suspects.INNER_LINKS else _WINDOW)
    print(f"{len(costs)} suspicions of {of}\n\n{table(costs, of)}")
    out: Path = options.out or Path(f"out/benchmarks/detection/suspicion_cost_{of}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
