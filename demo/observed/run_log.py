"""What an outside observer of one job has seen so far: samples, verdicts, plans and process events, with receive times.

Pure. Records may arrive twice or out of order (Kafka delivers at least once): each thing is kept once, by its natural
key. All times are Unix seconds of this machine.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts.layout import Layout

Decided = tuple[frozenset[str], frozenset[tuple[str, PlanState]]]
"""Ids of verdicts; (plan id, state) of plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSeen:
    """One micro-batch of a sample: index in the global batch, tokens N, sum of squared document lengths."""

    index: int
    tokens: int
    sum_of_squares: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSample:
    """One rank's iteration.

    Attributes:
        wall_seconds: Start of the iteration to the end of its optimizer step.
        compute_seconds: Device-busy seconds of forward and backward.
        flops: Floating-point operations of those forwards and backwards, from the position the sample carries.
        replica: Data-parallel replica d.
        stage: Pipeline stage s.
        shard: Tensor shard t.
        loss: Mean loss over the iteration's tokens; None when the rank does not know it.
        reshaped: The iteration contains a reshape; its wall time is not comparable.
        kept_micro_batches: What counts in the step without having been run in its epoch, the same on all its ranks.
    """

    rank: int
    incarnation: int
    iteration: int
    epoch: int
    started_at: float
    wall_seconds: float
    compute_seconds: float
    flops: float
    replica: int
    stage: int
    shard: int
    micro_batches: tuple[MicroBatchSeen, ...]
    loss: float | None
    reshaped: bool = False
    kept_micro_batches: tuple[MicroBatchSeen, ...] = ()

    @property
    def ended_at(self) -> float:
        """When its optimizer step was done, Unix seconds."""
        return self.started_at + self.wall_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritSeen:
    """One process that a verdict names."""

    rank: int
    incarnation: int
    node: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSeen:
    """One verdict. ``throughput`` is the culprit's speed: 1.0 = healthy, 0 = dead."""

    verdict_id: str
    kind: VerdictKind
    culprits: tuple[CulpritSeen, ...]
    throughput: float
    throughput_margin: float
    confidence: float
    first_iteration: int
    decided_iteration: int
    decided_at: float
    received_at: float
    evidence: tuple[str, ...] = ()

    def names(self, rank: int) -> bool:
        """True when ``rank`` is among the culprits."""
        return any(culprit.rank == rank for culprit in self.culprits)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeSeen:
    """A layout that lost, with its predicted seconds per iteration."""

    name: str
    predicted_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSeen:
    """One lever pulled, with the seconds per iteration that it alone is predicted to save."""

    lever: str
    description: str
    gain_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """A plan in one of its states; seconds are per iteration except ``cost_seconds`` and ``solve_seconds``."""

    plan_id: str
    incident_id: str
    state: PlanState
    epoch: int
    layout: Layout
    actions: tuple[ActionSeen, ...]
    idle_seconds: float
    predicted_seconds: float
    measured_seconds: float
    cost_seconds: float
    proportional_bound: float
    alternatives: tuple[AlternativeSeen, ...]
    reason: str
    solve_seconds: float
    at: float
    received_at: float
    first_iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """Something that happened to a process of the job, by the lower-case name of the protobuf enum."""

    kind: str
    rank: int
    incarnation: int
    at: float
    received_at: float
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSeen:
    """The detector's newest picture of the job: proof that it is alive and has caught up to ``iteration``."""

    iteration: int
    epoch: int
    iteration_seconds: float
    throughputs: tuple[tuple[int, float], ...]
    received_at: float


@dataclass(slots=True, kw_only=True)
class RunLog:
    """Everything seen of one job. Not thread-safe: one thread adds and reads (the demo's event loop).

    Attributes:
        job_id: Records of other jobs are not added.
        num_dropped: Samples that the job's processes say they dropped, by (rank, incarnation).
        num_unreadable: Records that could not be read.
        profiles: Every profile in order of arrival.
    """

    job_id: str
    num_dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    num_unreadable: int = 0
    profiles: list[ProfileSeen] = field(default_factory=list)
    _samples: dict[int, dict[tuple[int, int, int], RankSample]] = field(default_factory=lambda: defaultdict(dict))
    _verdicts: dict[str, VerdictSeen] = field(default_factory=dict)
    _plans: dict[tuple[str, PlanState], PlanSeen] = field(default_factory=dict)
    _processes: dict[tuple[str, int, int], ProcessSeen] = field(default_factory=dict)

    def add_sample(self, sample: RankSample) -> None:
        """Keep a sample, once per (iteration, epoch, rank, incarnation)."""
        self._samples[sample.iteration].setdefault((sample.epoch, sample.rank, sample.incarnation), sample)

    def add_verdict(self, verdict: VerdictSeen) -> bool:
        """Keep a verdict, once per id; True when it is new."""
        return self._verdicts.setdefault(verdict.verdict_id, verdict) is verdict

    def add_plan(self, plan: PlanSeen) -> bool:
        """Keep a plan, once per (id, state); True when it is new."""
        return self._plans.setdefault((plan.plan_id, plan.state), plan) is plan

    def add_process(self, process: ProcessSeen) -> bool:
        """Keep a process event, once per (kind, rank, incarnation); True when it is new."""
        return self._processes.setdefault((process.kind, process.rank, process.incarnation), process) is process

    def iterations(self, first: int = 0) -> Iterator[tuple[int, tuple[RankSample, ...]]]:
        """Every iteration from ``first`` on of which a sample arrived, ascending, with its samples by (epoch, rank)."""
        for iteration in sorted(number for number in self._samples if number >= first):
            yield iteration, self.samples_of(iteration)

    def samples_of(self, iteration: int) -> tuple[RankSample, ...]:
        """The samples of one iteration in order of (epoch, rank, incarnation)."""
        samples = self._samples.get(iteration, {})
        return tuple(samples[key] for key in sorted(samples))

    @property
    def last_iteration(self) -> int:
        """The newest iteration of which a sample arrived; -1 before the first."""
        return max(self._samples, default=-1)

    @property
    def last_epoch(self) -> int:
        """The newest epoch seen in a sample; -1 before the first."""
        return max((epoch for epoch, _, _ in self._samples.get(self.last_iteration, ())), default=-1)

    @property
    def verdicts(self) -> tuple[VerdictSeen, ...]:
        """All verdicts in the order in which they were decided."""
        return tuple(sorted(self._verdicts.values(), key=lambda verdict: verdict.decided_at))

    @property
    def plans(self) -> tuple[PlanSeen, ...]:
        """All plan states in the order in which they were entered."""
        return tuple(sorted(self._plans.values(), key=lambda plan: (plan.at, plan.received_at)))

    def decided(self, until: float) -> Decided:
        """Verdicts and plan states that were decided up to ``until``, Unix seconds."""
        return (
            frozenset(verdict.verdict_id for verdict in self.verdicts if verdict.decided_at <= until),
            frozenset((plan.plan_id, plan.state) for plan in self.plans if plan.at <= until),
        )

    @property
    def processes(self) -> tuple[ProcessSeen, ...]:
        """All process events in order of time."""
        return tuple(sorted(self._processes.values(), key=lambda process: process.at))

    def states_of(self, plan_id: str) -> dict[PlanState, PlanSeen]:
        """One plan in each state it has entered."""
        return {state: plan for (other, state), plan in self._plans.items() if other == plan_id}

    def plans_newest(self) -> tuple[PlanSeen, ...]:
        """Every plan once, in its newest state, in the order in which they were proposed."""
        order: dict[str, PlanSeen] = {}
        for plan in self.plans:
            order[plan.plan_id] = plan
        return tuple(order.values())

    def extend(self, things: Iterable["RankSample | VerdictSeen | PlanSeen | ProcessSeen | ProfileSeen"]) -> None:
        """Add a mixed batch in order."""
        for thing in things:
            match thing:
                case RankSample():
                    self.add_sample(thing)
                case VerdictSeen():
                    self.add_verdict(thing)
                case PlanSeen():
                    self.add_plan(thing)
                case ProcessSeen():
                    self.add_process(thing)
                case ProfileSeen():
                    self.profiles.append(thing)
