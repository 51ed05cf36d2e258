"""How much slower than ideal a job was, and who or what explains it.

Two questions for each suspect X (a rank, a stage, a kind of operation, the mix of sequences). ``slowdown``: how much
slower is the ideal job when X alone keeps the durations it had? ``share``: which part of the slowdown goes when X alone
becomes ideal? Shares need not add up to 1: suspects overlap, and one may hide behind another.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attribution.operations import Operations, OperationType
from attribution.replay import Replay
from attribution.sequences import sequence_factors

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STRAGGLING = 1.1
"""Slowdown from which a job counts as straggling (the paper's)."""

SLOWEST_WORKERS = 0.03
"""Part of the workers, slowest first, that are made ideal to see what single workers explain (the paper's)."""

EXPLAINS = 0.5
"""Share from which something is named as a cause (the paper's)."""

SEQUENCE_CORRELATION = 0.9
"""Correlation of forwards with their backwards that tells unequal sequences (the paper's) ..."""

WORTH_NAMING = 0.1
"""... where they also explain this share: a correlation says nothing about size."""

_PIPELINE_KINDS = {
    OperationType.FORWARD_SEND: "forward-pp-comm",
    OperationType.FORWARD_RECV: "forward-pp-comm",
    OperationType.BACKWARD_SEND: "backward-pp-comm",
    OperationType.BACKWARD_RECV: "backward-pp-comm",
}
_MOST_WORKERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank, a stage or a kind of operation.

    Attributes:
        name: Its number or name.
        slowdown: Of the ideal job when only this keeps its durations.
        share: Part of the job's slowdown that goes when only this becomes ideal.
    """

    name: str
    slowdown: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step, seconds: as recorded, replayed without the recording's gaps, and replayed with everybody ideal."""

    step: int
    observed_seconds: float
    replayed_seconds: float
    ideal_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a recording says about a job.

    Attributes:
        num_workers: Workers: pipeline stages times data-parallel ranks.
        num_structures: Different schedules among the steps.
        observed_seconds: Mean step as recorded.
        replayed_seconds: Mean step replayed with the durations it had.
        ideal_seconds: Mean step replayed with all operations of a type alike.
        launch_slowdown: Observed over replayed: time between operations that none of them explains.
        slowdown: S, replayed over ideal.
        waste: 1 - 1/S, the part of the devices' time that is lost.
        worker_share: M_W, share of the slowest 3 % of workers, at least one.
        slowest_workers: Global ranks of those workers.
        last_stage_share: M_S, share of the last pipeline stage; 0 without a pipeline.
        sequence_share: Share of micro-batches that cost more or less than others on every stage and in both directions.
        sequence_correlation: Correlation of a forward's duration with its backward's; None where nothing varies.
        by_stage: Suspects by stage, worst first.
        by_dp_rank: Suspects by data-parallel rank, worst first.
        by_operation: Suspects by kind of operation, worst first.
        by_rank: Suspects by worker, by global rank, worst first.
        causes: What explains at least half of a slowdown worth the name: "slow_workers", "last_stage", "sequences".
        ill_ranks: Ranks accused: the slowest workers where they are the cause.
        per_step: Each step.
    """

    num_workers: int
    num_structures: int
    observed_seconds: float
    replayed_seconds: float
    ideal_seconds: float
    launch_slowdown: float
    slowdown: float
    waste: float
    worker_share: float
    slowest_workers: tuple[int, ...]
    last_stage_share: float
    sequence_share: float
    sequence_correlation: float | None
    by_stage: tuple[Suspect, ...]
    by_dp_rank: tuple[Suspect, ...]
    by_operation: tuple[Suspect, ...]
    by_rank: tuple[Suspect, ...]
    causes: tuple[str, ...]
    ill_ranks: tuple[int, ...]
    per_step: tuple[Step, ...]

    def to_plain(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


def analyze(operations: Operations) -> Attribution:
    """Replays a recording and asks of each suspect what it explains.

    Raises:
        OperationError: A step's operations form no graph.
    """
    replay = Replay(operations)
    asked = _Questions(replay)
    names, kind_of = np.unique(operations.optype, return_inverse=True)
    kinds = np.array([_PIPELINE_KINDS.get(OperationType(name), name) for name in names.tolist()])[kind_of]
    by_stage = asked.suspects(operations.stage)
    by_dp_rank = asked.suspects(operations.dp_rank)
    slowest = _slowest_workers(operations, by_stage, by_dp_rank)
    worker_share = asked.share(np.isin(operations.rank, slowest))
    last_stage = int(operations.stage.max())
    last_stage_share = asked.share(operations.stage == last_stage) if last_stage else 0.0
    factors, correlation = sequence_factors(operations, replay.actual)
    sequence_share = asked.share_of(replay.actual / factors)
    slowdown = asked.replayed / asked.ideal
    causes = _causes(slowdown, worker_share, last_stage_share, sequence_share, correlation)
    num_workers = len(np.unique(operations.rank))
    return Attribution(
        num_workers=num_workers,
        num_structures=replay.num_structures,
        observed_seconds=float(asked.observed_steps.mean()),
        replayed_seconds=asked.replayed,
        ideal_seconds=asked.ideal,
        launch_slowdown=float(asked.observed_steps.mean()) / asked.replayed,
        slowdown=slowdown,
        waste=1 - 1 / slowdown,
        worker_share=worker_share,
        slowest_workers=slowest,
        last_stage_share=last_stage_share,
        sequence_share=sequence_share,
        sequence_correlation=correlation,
        by_stage=by_stage,
        by_dp_rank=by_dp_rank,
        by_operation=asked.suspects(kinds),
        by_rank=asked.suspects(operations.rank) if num_workers <= _MOST_WORKERS else (),
        causes=causes,
        ill_ranks=slowest if "slow_workers" in causes else (),
        per_step=asked.steps(),
    )


class _Questions:
    """Asks a replay what explains its slowdown."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.observed_steps = replay.observed_seconds()
        self._replayed_steps, self._ideal_steps = replay.many_step_seconds([replay.actual, replay.ideal])
        self.replayed = float(self._replayed_steps.mean())
        self.ideal = float(self._ideal_steps.mean())

    def share_of(self, durations: Floats) -> float:
        """Part of the slowdown that goes with these durations; 0 where there is none to speak of."""
        return self._as_share(float(self._replay.step_seconds(durations).mean()))

    def share(self, fixed: Bools) -> float:
        """Part of the slowdown that goes when some operations become ideal."""
        return self.share_of(np.where(fixed, self._replay.ideal, self._replay.actual))

    def suspects(self, labels: npt.NDArray[Any]) -> tuple[Suspect, ...]:
        """Both questions about each group of operations, the slowest first."""
        replay = self._replay
        names = np.unique(labels)
        kept = replay.many_step_seconds(np.where(labels == name, replay.actual, replay.ideal) for name in names)
        fixed = replay.many_step_seconds(np.where(labels == name, replay.ideal, replay.actual) for name in names)
        found = [
            Suspect(
                name=str(name), slowdown=float(kept[row].mean()) / self.ideal, share=self._as_share(fixed[row].mean())
            )
            for row, name in enumerate(names)
        ]
        return tuple(sorted(found, key=lambda suspect: -suspect.slowdown))

    def steps(self) -> tuple[Step, ...]:
        """Each step."""
        columns = (self._replay.steps, self.observed_steps, self._replayed_steps, self._ideal_steps)
        return tuple(
            Step(step=int(step), observed_seconds=float(seen), replayed_seconds=float(again), ideal_seconds=float(best))
            for step, seen, again, best in zip(*columns, strict=True)
        )

    def _as_share(self, seconds: float) -> float:
        lost = self.replayed - self.ideal
        return float((self.replayed - seconds) / lost) if abs(lost) > 1e-9 * self.ideal else 0.0


def _slowest_workers(
    operations: Operations, by_stage: tuple[Suspect, ...], by_dp_rank: tuple[Suspect, ...]
) -> tuple[int, ...]:
    """The slowest 3 % by the lesser of their stage's and their data-parallel rank's slowdown."""
    of_stage = {int(suspect.name): suspect.slowdown for suspect in by_stage}
    of_dp_rank = {int(suspect.name): suspect.slowdown for suspect in by_dp_rank}
    ranks, first = np.unique(operations.rank, return_index=True)
    scores = {
        rank: min(of_dp_rank[int(operations.dp_rank[row])], of_stage[int(operations.stage[row])])
        for rank, row in zip(ranks.tolist(), first.tolist(), strict=True)
    }
    count = math.ceil(round(len(scores) * SLOWEST_WORKERS, 9))
    return tuple(sorted(scores, key=lambda rank: (-scores[rank], rank))[:count])


def _causes(
    slowdown: float, workers: float, last_stage: float, sequences: float, correlation: float | None
) -> tuple[str, ...]:
    if slowdown < STRAGGLING:
        return ()
    found = []
    if workers >= EXPLAINS:
        found.append("slow_workers")
    if last_stage >= EXPLAINS:
        found.append("last_stage")
    correlated = correlation is not None and correlation >= SEQUENCE_CORRELATION
    if sequences >= EXPLAINS or (correlated and sequences >= WORTH_NAMING):
        found.append("sequences")
    return tuple(found)
