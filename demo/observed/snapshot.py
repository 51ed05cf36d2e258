"""The moment that the live view shows: one plain object, made from the run log and the truths. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from evenkeel.demo.observed.run_log import PlanSeen, RankSample, RunLog, VerdictSeen
from evenkeel.demo.observed.timeline import (
    CommittedIteration,
    HealthyPace,
    committed_iterations,
    healthy_pace,
    healthy_rank_rate,
    rank_speed,
    relative_throughput,
)
from evenkeel.demo.observed.truths import Truth, disturbs, true_throughputs
from evenkeel.history.vocabulary import PlanState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec

NUM_SHOWN = 6
"""Newest iterations that the figures of a moment are taken from."""
NUM_HEALTHY = 24
"""Healthy iterations that the healthy figures are taken from; all of the run would cost more and say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """One rank: its device's speed in the newest iteration, None without work or process, and its true speed."""

    rank: int
    incarnation: int
    speed: float | None
    true_speed: float
    micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What to show now.

    Attributes:
        at: Unix seconds.
        iteration: Newest iteration whose samples are in; -1 before the first.
        epoch: Its epoch.
        loss: Its loss.
        iteration_seconds: Its time.
        throughput: Speed relative to healthy on the same micro-batches, median of the newest three iterations.
        bound: The proportional bound: sum of true speeds over the number of devices.
        verdicts: All verdicts so far.
        plans: All plans so far, newest state of each.
    """

    at: float
    iteration: int
    epoch: int
    loss: float | None
    iteration_seconds: float | None
    throughput: float | None
    bound: float
    ranks: tuple[RankNow, ...]
    verdicts: tuple[VerdictSeen, ...]
    plans: tuple[PlanSeen, ...]


class SnapshotMaker:
    """Makes snapshots of one run; keeps the healthy rates once the first failure is injected.

    Args:
        log: What is seen; read only.
        model: The model's costs.
        layout: Layout of the healthy job.
    """

    def __init__(self, log: RunLog, model: ModelSpec, layout: Layout) -> None:
        self._log = log
        self._model = model
        self._layout = layout
        self._num_ranks = len(layout.ranks)
        self._frozen: tuple[HealthyPace | None, float] | None = None

    def make(self, at: float, truths: Sequence[Truth]) -> Snapshot:
        """The moment ``at`` (Unix seconds), after ``truths``."""
        log = self._log
        pace, rank_rate = self._healthy_figures(truths)
        # The newest iteration is still arriving; the one before it is whole.
        recent = committed_iterations(log, self._model, self._layout, first=log.last_iteration - NUM_SHOWN)
        whole = recent[:-1]
        newest = whole[-1] if whole else None
        values = [value for entry in whole[-3:] if (value := relative_throughput(entry, pace)) is not None]
        speeds = true_throughputs(truths, self._num_ranks, at)
        return Snapshot(
            at=at,
            iteration=newest.iteration if newest else -1,
            epoch=newest.epoch if newest else 0,
            loss=newest.loss if newest else None,
            iteration_seconds=newest.seconds if newest else None,
            throughput=median(values) if values else None,
            bound=sum(speeds) / self._num_ranks,
            ranks=tuple(_rank_now(rank, newest, rank_rate, true_speed) for rank, true_speed in enumerate(speeds)),
            verdicts=log.verdicts,
            plans=log.plans_newest(),
        )

    def _healthy_figures(self, truths: Sequence[Truth]) -> tuple[HealthyPace | None, float]:
        if self._frozen is not None:
            return self._frozen
        until = min((truth.at for truth in truths if disturbs(truth)), default=float("inf"))
        first = max(self._log.last_iteration - NUM_HEALTHY, 0) if until == float("inf") else 0
        iterations = committed_iterations(self._log, self._model, self._layout, first=first)[:-1]
        figures = healthy_pace(iterations, until), healthy_rank_rate(iterations, until)
        if until < float("inf"):
            self._frozen = figures
        return figures


def _rank_now(rank: int, newest: CommittedIteration | None, healthy_rate: float, true_speed: float) -> RankNow:
    sample: RankSample | None = next((each for each in newest.samples if each.rank == rank), None) if newest else None
    return RankNow(
        rank=rank,
        incarnation=sample.incarnation if sample else 0,
        speed=rank_speed(sample, newest, healthy_rate) if sample and newest else None,
        true_speed=true_speed,
        micro_batches=len(sample.micro_batches) if sample else 0,
    )


def verdict_line(verdict: VerdictSeen) -> str:
    """A verdict in one line."""
    ranks = ", ".join(str(culprit.rank) for culprit in verdict.culprits)
    text = f"{verdict.kind.value.replace('_', ' ')}: rank {ranks}"
    return f"{text} computes at {verdict.throughput:.2f}" if 0 < verdict.throughput < 1 else text


def plan_line(plan: PlanSeen) -> str:
    """A plan in one line."""
    levers = " + ".join(dict.fromkeys(action.lever for action in plan.actions)) or "no change"
    text = f"epoch {plan.epoch} {plan.state.value}: {levers}, predicted {plan.predicted_seconds:.3f} s"
    return f"{text}, measured {plan.measured_seconds:.3f} s" if plan.state is PlanState.MEASURED else text
