"""From samples to committed iterations and speeds: the arithmetic under summary, pictures and live view. Pure.

Clocks: all processes run on one machine, so their Unix times are comparable.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from evenkeel.demo.observed.run_log import MicroBatchSeen, RankSample, RunLog
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec

WARM_UP_ITERATIONS = 3
"""First iterations that no healthy figure is taken from: caches are cold, connections are made."""
NEGLIGIBLE_WORK = 0.03
"""Below this part of an even share, a rank's time is overhead and says nothing about its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedIteration:
    """One iteration as the job finally did it: the samples of its highest epoch.

    Attributes:
        committed_at: End of the last rank's optimizer step, Unix seconds.
        seconds: Since the previous iteration's commit, whatever lay between; None when that one was not seen.
        work: Floating-point operations of its micro-batches, forward and backward.
        critical_work: The part of it that the busiest replica of the healthy layout would do: what its time follows.
        tokens: Tokens of its micro-batches.
        loss: Mean loss over its tokens; None when no rank reported it.
        uses: How often each global micro-batch index was used by a replica.
    """

    iteration: int
    epoch: int
    committed_at: float
    seconds: float | None
    work: float
    critical_work: float
    tokens: int
    loss: float | None
    uses: Counter[int]
    samples: tuple[RankSample, ...]

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that reported it."""
        return frozenset(sample.rank for sample in self.samples)


def committed_iterations(
    log: RunLog, model: ModelSpec, layout: Layout, *, first: int = 0
) -> tuple[CommittedIteration, ...]:
    """All iterations seen from ``first`` on, ascending; ``model`` and healthy ``layout`` tell their work.

    An iteration that was begun again after a failure counts with its last epoch only, whose samples also name what was
    kept of the earlier attempt.
    """
    result: list[CommittedIteration] = []
    for iteration, samples in log.iterations(first):
        epoch = max(sample.epoch for sample in samples)
        final = tuple(sample for sample in samples if sample.epoch == epoch)
        committed_at = max(sample.ended_at for sample in final)
        previous = result[-1] if result and result[-1].iteration == iteration - 1 else None
        batches = list(_replica_micro_batches(final))
        work = {batch.index: work_of(batch, model) for batch in batches}
        result.append(
            CommittedIteration(
                iteration=iteration,
                epoch=epoch,
                committed_at=committed_at,
                seconds=committed_at - previous.committed_at if previous else None,
                work=sum(work.values()),
                critical_work=max(
                    sum(work.get(index, 0.0) for index in layout.micro_batches_of(replica))
                    for replica in range(len(layout.replicas))
                ),
                tokens=sum(batch.tokens for batch in batches),
                loss=next((sample.loss for sample in final if sample.loss is not None), None),
                uses=Counter(batch.index for batch in batches),
                samples=final,
            )
        )
    return tuple(result)


def _replica_micro_batches(samples: Iterable[RankSample]) -> Iterator[MicroBatchSeen]:
    """Every micro-batch once per replica that ran it, however many shards and stages reported it, and once if kept."""
    seen: dict[tuple[int | None, int], MicroBatchSeen] = {}
    for sample in samples:
        for batch in sample.micro_batches:
            seen.setdefault((sample.replica, batch.index), batch)
        for batch in sample.kept_micro_batches:
            seen.setdefault((None, batch.index), batch)
    yield from seen.values()


def work_of(batch: MicroBatchSeen, model: ModelSpec) -> float:
    """Floating-point operations of one micro-batch through the whole model, forward and backward."""
    return sum(
        block.forward_flops(batch.tokens, batch.sum_of_squares) * (1 + block.backward_multiple)
        for block in model.blocks
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyPace:
    """What an iteration takes while everybody is healthy: a fixed part and a part that follows its work."""

    fixed_seconds: float
    seconds_per_work: float

    def expected_seconds(self, entry: CommittedIteration) -> float:
        """What the healthy job would have taken for this iteration's micro-batches."""
        return self.fixed_seconds + self.seconds_per_work * entry.critical_work


def healthy_pace(iterations: Sequence[CommittedIteration], until: float) -> HealthyPace | None:
    """The pace before ``until``, the warm-up left out; None while fewer than two iterations tell it.

    A line through (work, seconds) by Theil and Sen: the median slope of all pairs, which a few disturbed iterations on
    a busy machine do not bend.
    """
    points = [
        (entry.critical_work, entry.seconds)
        for entry in iterations
        if entry.seconds and entry.critical_work > 0
        if entry.iteration >= WARM_UP_ITERATIONS and entry.committed_at <= until
    ]
    if len(points) < 2:
        return None
    slopes = [(t2 - t1) / (w2 - w1) for (w1, t1), (w2, t2) in combinations(points, 2) if w1 != w2]
    # More work never takes less time, and no iteration less than none: noise alone could say so.
    proportional = median(seconds / work for work, seconds in points)
    slope = min(max(median(slopes), 0.0), proportional) if slopes else proportional
    return HealthyPace(
        fixed_seconds=max(median(seconds - slope * work for work, seconds in points), 0.0), seconds_per_work=slope
    )


def relative_throughput(entry: CommittedIteration, pace: HealthyPace | None) -> float | None:
    """Speed of one iteration relative to healthy on the same micro-batches, so that long documents do not look slow."""
    if not entry.seconds or pace is None:
        return None
    return pace.expected_seconds(entry) / entry.seconds


def healthy_rank_rate(iterations: Sequence[CommittedIteration], until: float) -> float:
    """Median operations per compute second over all ranks before ``until``, the warm-up left out; 0 when none yet."""
    rates = [
        sample.flops / sample.compute_seconds
        for entry in iterations
        if entry.iteration >= WARM_UP_ITERATIONS and entry.committed_at <= until
        for sample in entry.samples
        if sample.compute_seconds > 0
    ]
    return median(rates) if rates else 0.0


def rank_speed(sample: RankSample, entry: CommittedIteration, healthy_rate: float) -> float | None:
    """A device's compute speed in one iteration relative to healthy; None when it had next to nothing to compute."""
    even_share = entry.work / max(len(entry.samples), 1)
    if sample.compute_seconds <= 0 or sample.flops <= NEGLIGIBLE_WORK * even_share or healthy_rate <= 0:
        return None
    return sample.flops / sample.compute_seconds / healthy_rate


def median_seconds(iterations: Iterable[CommittedIteration]) -> float | None:
    """Median seconds per iteration, or None of none."""
    seconds = [entry.seconds for entry in iterations if entry.seconds is not None]
    return median(seconds) if seconds else None
