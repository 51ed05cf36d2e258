"""Everything the judgement is made from: what was done, what was seen, and what should have been. Pure."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from evenkeel.demo.observed.run_log import RunLog
from evenkeel.demo.observed.timeline import (
    CommittedIteration,
    HealthyPace,
    committed_iterations,
    healthy_pace,
    healthy_rank_rate,
)
from evenkeel.demo.observed.truths import Truth, disturbs
from evenkeel.demo.script.conditions import Moment
from evenkeel.demo.script.scenario import Step
from evenkeel.history.vocabulary import PlanState
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """One step of the scenario as it was played; ``missing`` says what was not seen before the timeout."""

    step: Step
    began: Moment
    ended_at: float
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """One SQL question to the history, with its answer as text."""

    title: str
    sql: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupWindow:
    """One rollup: how many iterations of ``[first_iteration, stop_iteration)`` of one process and epoch went in."""

    rank: int
    incarnation: int
    epoch: int
    first_iteration: int
    stop_iteration: int
    num_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFacts:
    """What the SQL history holds of the job after the run.

    Attributes:
        rollups: Every rollup.
        verdict_ids: Verdicts in SQL.
        plan_states: (plan id, state) in SQL.
        until: Up to when verdicts and plan states count, Unix seconds: what was decided later may be on its way still.
        queries: The documented questions and their answers, for the report.
    """

    rollups: tuple[RollupWindow, ...]
    verdict_ids: frozenset[str]
    plan_states: frozenset[tuple[str, PlanState]]
    until: float = math.inf
    queries: tuple[QueryResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Observations:
    """One finished run.

    Attributes:
        log: What was seen on Kafka. Not added to any more.
        truths: What was done, in order of time.
        outcomes: The steps as played.
        model: The model's costs, to tell work from time.
        layout: Layout of the healthy job.
        flops_per_second: Of a healthy device.
        reference_losses: Loss of each iteration of the failure-free run, from iteration 0.
        history: What SQL holds; None when it could not be read.
        long_documents: The stretch of iterations with long documents.
        severity_tolerance: Largest relative error of a found throughput.
    """

    log: RunLog
    truths: tuple[Truth, ...]
    outcomes: tuple[StepOutcome, ...]
    model: ModelSpec
    layout: Layout
    flops_per_second: float
    reference_losses: tuple[float, ...]
    history: HistoryFacts | None
    long_documents: range = field(default=range(0))
    severity_tolerance: float = 0.1

    @property
    def num_ranks(self) -> int:
        """Ranks of the healthy job."""
        return len(self.layout.ranks)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of every iteration."""
        return self.layout.num_micro_batches

    @cached_property
    def iterations(self) -> tuple[CommittedIteration, ...]:
        """All iterations seen but the newest, whose samples the end of the run may have cut off."""
        return committed_iterations(self.log, self.model, self.layout)[:-1]

    @cached_property
    def first_disturbance_at(self) -> float:
        """When the first failure was injected, Unix seconds; infinity when none was."""
        return min((truth.at for truth in self.truths if disturbs(truth)), default=float("inf"))

    @cached_property
    def pace(self) -> HealthyPace | None:
        """The whole job's pace before the first failure."""
        return healthy_pace(self.iterations, self.first_disturbance_at)

    @cached_property
    def healthy_rank_rate(self) -> float:
        """Operations per compute second of a device before the first failure."""
        return healthy_rank_rate(self.iterations, self.first_disturbance_at)

    @cached_property
    def started_at(self) -> float:
        """Start of the first iteration seen, Unix seconds; 0 when none was."""
        return min((sample.started_at for _, samples in self.log.iterations() for sample in samples), default=0.0)
