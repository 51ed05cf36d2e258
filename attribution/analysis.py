"""How much slower than ideal a job was, and who or what explains it.

Two questions for each suspect X (a rank, a stage, a kind of operation, the mix of sequences). ``slowdown``: how much
slower is the ideal job when X alone keeps the durations it had? ``share``: which part of the slowdown goes when X alone
becomes ideal? Shares need not add up to 1: suspects overlap, and one may hide behind another.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.causes.heavy_stages import heavy_stages
from evenkeel.attribution.causes.links import by_slowness, links_of, slow_links
from evenkeel.attribution.causes.pauses import pauses
from evenkeel.attribution.causes.sequences import sequence_factors
from evenkeel.attribution.causes.slow_workers import slow_workers
from evenkeel.attribution.graph.replay import Replay
from evenkeel.attribution.graph.turns import fitting_replay
from evenkeel.attribution.operations import COMPUTE, LOCAL, Operations, OperationType
from evenkeel.attribution.questions import EXPLAINS, STRAGGLING, Questions, Step, Suspect

SLOWEST_WORKERS = 0.03
"""Part of the workers, slowest first, that are made ideal to see what single workers explain (the paper's)."""

SEQUENCE_CORRELATION = 0.9
"""Correlation of forwards with their backwards that tells unequal sequences (the paper's) ..."""

WORTH_NAMING = 0.1
"""... where they also explain this share: a correlation says nothing about size."""

NOTABLE = 1.02
"""Slowdown from which those are named who explain it; it has causes from :data:`STRAGGLING` on."""

_PIPELINE_KINDS = {
    OperationType.FORWARD_SEND: "forward-pp-comm",
    OperationType.FORWARD_RECV: "forward-pp-comm",
    OperationType.BACKWARD_SEND: "backward-pp-comm",
    OperationType.BACKWARD_RECV: "backward-pp-comm",
}
_ASIDE = {OperationType.INPUT: "input", OperationType.GARBAGE_COLLECTION: "garbage_collection"}
_ALL_WORKERS = 512
_MOST_RANKS = 64
_MOST_LINKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a recording says about a job.

    Attributes:
        num_workers: Workers: pipeline stages times data-parallel ranks.
        num_structures: Different schedules among the steps.
        observed_seconds: Mean step as recorded.
        replayed_seconds: Mean step replayed with the durations it had.
        ideal_seconds: Mean step replayed with all operations of a type alike.
        in_turn: The recording shows that workers waited for each transfer in its turn, and was replayed so.
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
        by_rank: Suspects by worker, by global rank, worst first; of more than 512 workers the 64 that compute longest
            beside the others of their stage.
        by_link: Suspects by link (see :mod:`.causes.links`): the 16 whose transfers take longest, worst
            first.
        causes: What explains at least half of a slowdown of 10 % or more: "slow_workers", "last_stage", "heavy_stage"
            (another than the last), "communication", "pauses" (computations that now and then take twice as long),
            "input", "garbage_collection", "sequences".
        ill_ranks: Workers that compute more slowly than their peers, where they explain half of a slowdown of 2 % or
            more.
        heavy_stages: Stages that have more to do than the others, likewise.
        slow_links: Links that are slower than the others, likewise.
        per_step: Each step.
    """

    num_workers: int
    num_structures: int
    observed_seconds: float
    replayed_seconds: float
    ideal_seconds: float
    in_turn: bool
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
    by_link: tuple[Suspect, ...]
    causes: tuple[str, ...]
    ill_ranks: tuple[int, ...]
    heavy_stages: tuple[int, ...]
    slow_links: tuple[str, ...]
    per_step: tuple[Step, ...]

    def to_plain(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


def analyze(operations: Operations) -> Attribution:
    """Replays a recording and asks of each suspect what it explains.

    Raises:
        OperationError: A step's operations form no graph.
    """
    replay = fitting_replay(operations)
    asked = Questions(replay)
    names, kind_of = np.unique(operations.optype, return_inverse=True)
    kinds = np.array([_PIPELINE_KINDS.get(OperationType(name), name) for name in names.tolist()])[kind_of]
    by_stage = asked.suspects(operations.stage)
    by_dp_rank = asked.suspects(operations.dp_rank)
    slowest = _slowest_workers(operations, by_stage, by_dp_rank)
    worker_share = asked.share(np.isin(operations.rank, slowest))
    last_stage = int(operations.stage.max())
    last_stage_share = asked.share(operations.stage == last_stage) if last_stage else 0.0
    slow = slow_workers(operations, replay.actual)
    factors, correlation = sequence_factors(operations, replay.actual, apart=slow)
    sequence_share = asked.share_of(replay.actual / factors)
    links = links_of(replay)
    slowness = by_slowness(operations, links, replay.actual)
    slowdown = asked.replayed / asked.ideal
    named = _Named(heavy_stages=(), ill_ranks=(), slow_links=(), causes=())
    if slowdown >= NOTABLE:
        correlated = correlation is not None and correlation >= SEQUENCE_CORRELATION
        of_sequences = sequence_share >= EXPLAINS or (correlated and sequence_share >= WORTH_NAMING)
        named = _name(operations, replay, asked, slow=slow, factors=factors, links=links, slowness=slowness)
        causes = (*named.causes, *(("sequences",) if of_sequences else ()))
        named = replace(named, causes=causes if slowdown >= STRAGGLING else ())
    num_workers = len(np.unique(operations.rank))
    return Attribution(
        num_workers=num_workers,
        num_structures=replay.num_structures,
        observed_seconds=float(asked.observed_steps.mean()),
        replayed_seconds=asked.replayed,
        ideal_seconds=asked.ideal,
        in_turn=bool(replay.turns),
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
        by_rank=asked.suspects(operations.rank, named=_ranks_asked_about(operations, replay.actual)),
        by_link=asked.suspects(links, named=list(slowness)[:_MOST_LINKS]),
        causes=named.causes,
        ill_ranks=named.ill_ranks,
        heavy_stages=named.heavy_stages,
        slow_links=named.slow_links,
        per_step=asked.steps(),
    )


def _ranks_asked_about(operations: Operations, seconds: npt.NDArray[np.float64]) -> tuple[int, ...]:
    """All ranks, or in a huge job those that compute longest: each costs two replays of the whole recording."""
    computes = np.isin(operations.optype, list(COMPUTE))
    ranks, first, place = np.unique(operations.rank, return_index=True, return_inverse=True)
    if len(ranks) <= _ALL_WORKERS:
        return tuple(ranks.tolist())
    spent = np.bincount(place.ravel(), weights=np.where(computes, seconds, 0.0))
    stages = operations.stage[first]
    for stage in np.unique(stages):
        spent[stages == stage] /= max(float(np.median(spent[stages == stage])), 1e-9)
    return tuple(ranks[np.argsort(-spent, kind="stable")[:_MOST_RANKS]].tolist())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What is accused; see :class:`Attribution`."""

    causes: tuple[str, ...]
    ill_ranks: tuple[int, ...]
    heavy_stages: tuple[int, ...]
    slow_links: tuple[str, ...]


def _name(
    operations: Operations,
    replay: Replay,
    asked: Questions,
    *,
    slow: tuple[int, ...],
    factors: npt.NDArray[np.float64],
    links: npt.NDArray[np.str_],
    slowness: dict[str, float],
) -> _Named:
    """Who and what explains a slowdown worth the name, but for the sequences."""
    computes = np.isin(operations.optype, list(COMPUTE))
    is_slow = np.isin(operations.rank, slow)
    causes = []
    ill = slow if asked.explains(computes & is_slow) else ()
    if ill:
        causes.append("slow_workers")
    heavy = heavy_stages(operations, replay.actual, ill_ranks=slow)
    if not asked.explains(computes & np.isin(operations.stage, heavy) & ~is_slow):
        heavy = ()
    last = int(operations.stage.max())
    if last in heavy:
        causes.append("last_stage")
    if set(heavy) - {last}:
        causes.append("heavy_stage")
    if asked.explains(~np.isin(operations.optype, list(LOCAL))):
        causes.append("communication")
    accused = slow_links(slowness)
    if not asked.explains(np.isin(links, accused)):
        accused = ()
    if asked.explains(pauses(operations, replay.actual / factors) & ~is_slow):
        causes.append("pauses")
    causes += [name for kind, name in _ASIDE.items() if asked.explains(operations.optype == kind)]
    return _Named(causes=tuple(causes), ill_ranks=ill, heavy_stages=heavy, slow_links=accused)
