"""From kill -9 to the next committed optimizer step: ``python -m benchmarks.engine.kill_to_commit``.

The demo's job on the demo's stack: 8 ranks (TP 2 x PP 2 x DP 2) on emulated devices, killed at random moments of an
iteration, every position in turn, rank 0 included; each time a replacement joins before the next kill. Prints a line
per kill, then the percentiles of (kill to next committed step) minus the healthy iteration; JSON goes to ``--out``.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

from rich.console import Console

from evenkeel.demo.live import choose_view
from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.timeline import CommittedIteration
from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.performance import perform
from evenkeel.demo.report.summary import phases_of, resuming_iteration
from evenkeel.demo.script.conditions import IterationReached, IterationsUnderNewEpoch, ShapeReached, VerdictGiven
from evenkeel.demo.script.job import ITERATION_SECONDS
from evenkeel.demo.script.scenario import LONG_DOCUMENTS, Act, Step
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.stack.stack import Stack

NUM_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill; seconds since the kill, None where it was not seen.

    Attributes:
        rank: Who was killed.
        verdict: Until the verdict was decided.
        committed: Until the plan's decision was durable.
        applied: Until every rank ran the plan.
        resumed: Until the next committed optimizer step.
        healthy_iteration: Median of the iterations before the kill.
        kept_micro_batches: Micro-batches of the interrupted iteration that nobody had to run again.
    """

    rank: int
    verdict: float | None
    committed: float | None
    applied: float | None
    resumed: float | None
    healthy_iteration: float | None
    kept_micro_batches: int | None

    @property
    def lost(self) -> float | None:
        """What the kill cost: until the next step, minus the iteration that was due anyway."""
        if self.resumed is None or self.healthy_iteration is None:
            return None
        return self.resumed - self.healthy_iteration


def script_of(num_kills: int, seed: int) -> tuple[Step, ...]:
    """Kill and replace, every position in turn, starting with rank 0."""
    rng = random.Random(seed)
    steps = [
        Step(
            title="healthy",
            act=Act.OBSERVE,
            until=(IterationReached(LONG_DOCUMENTS.stop + 10),),
            timeout_seconds=120.0,
        )
    ]
    for number in range(num_kills):
        rank = number % NUM_RANKS
        steps += [
            Step(
                title=f"kill {number + 1} of {num_kills}: rank {rank}",
                act=Act.KILL_RANK,
                rank=rank,
                delay_seconds=rng.uniform(0.0, 2.0 * ITERATION_SECONDS),
                until=(VerdictGiven(VerdictKind.FAIL_STOP, rank), IterationsUnderNewEpoch(3)),
            ),
            Step(
                title=f"rank {rank} comes back",
                act=Act.REPLACE_RANK,
                rank=rank,
                until=(
                    VerdictGiven(VerdictKind.REJOINED, rank),
                    IterationsUnderNewEpoch(8),
                    ShapeReached(NUM_RANKS),
                ),
            ),
        ]
    return tuple(steps)


def kills_in(seen: Observations) -> list[Kill]:
    """What each kill cost."""
    kills = []
    for phase in phases_of(seen):
        truth = phase.truth
        if truth.kind is not TruthKind.FAIL_STOP or truth.rank is None:
            continue
        states = seen.log.states_of(phase.plan.plan_id) if phase.plan else {}
        resumed = resuming_iteration(phase)
        healthy = [entry.seconds for entry in phase.before if entry.seconds is not None]
        kills.append(
            Kill(
                rank=truth.rank,
                verdict=phase.verdicts[0].decided_at - truth.at if phase.verdicts else None,
                committed=states[PlanState.COMMITTED].at - truth.at if PlanState.COMMITTED in states else None,
                applied=states[PlanState.APPLIED].at - truth.at if PlanState.APPLIED in states else None,
                resumed=resumed.committed_at - truth.at if resumed else None,
                healthy_iteration=median(healthy) if healthy else None,
                kept_micro_batches=_num_kept(resumed) if resumed else None,
            )
        )
    return kills


def _num_kept(resumed: CommittedIteration) -> int:
    return len({batch.index for sample in resumed.samples for batch in sample.kept_micro_batches})


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least ``fraction`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-fraction * len(ordered) // 1) - 1))]


def main() -> None:
    """Runs the kills, prints the table, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/kill_to_commit.json"))
    options = parser.parse_args()
    with Stack("benchmark", keep_data=False) as stack, choose_view(Console(stderr=True)) as view:
        seen = asyncio.run(
            perform(stack, options.seed, view, stack.folder / "job", steps=script_of(options.kills, options.seed))
        )
    kills = kills_in(seen)
    print("| rank | verdict s | committed s | applied s | next step s | healthy iteration s | lost s | kept |")
    print("|---|---|---|---|---|---|---|---|")
    for kill in kills:
        figures = (kill.verdict, kill.committed, kill.applied, kill.resumed, kill.healthy_iteration, kill.lost)
        cells = ["-" if value is None else f"{value:.3f}" for value in figures]
        kept = "-" if kill.kept_micro_batches is None else str(kill.kept_micro_batches)
        print(f"| {kill.rank} | " + " | ".join([*cells, kept]) + " |")
    lost = [kill.lost for kill in kills if kill.lost is not None]
    kept_each = [kill.kept_micro_batches for kill in kills if kill.kept_micro_batches is not None]
    figures_of_all = {
        "kills": options.kills,
        "recovered": len(lost),
        "p50_seconds": percentile(lost, 0.5) if lost else None,
        "p95_seconds": percentile(lost, 0.95) if lost else None,
        "max_seconds": max(lost, default=None),
        "mean_kept_micro_batches": mean(kept_each) if kept_each else None,
    }
    print(json.dumps(figures_of_all))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**figures_of_all, "each": [asdict(kill) for kill in kills]}, indent=1))


if __name__ == "__main__":
    main()
