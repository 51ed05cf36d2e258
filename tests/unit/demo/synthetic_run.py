"""A run that did not happen: a small job with a known truth, built without any service, to judge the judges."""

import random
from collections import Counter
from dataclasses import dataclass, field

from evenkeel.demo.observed.observations import HistoryFacts, Observations, QueryResult, RollupWindow, StepOutcome
from evenkeel.demo.observed.run_log import (
    ActionSeen,
    AlternativeSeen,
    CulpritSeen,
    MicroBatchSeen,
    PlanSeen,
    ProcessSeen,
    RankSample,
    RunLog,
    VerdictSeen,
)
from evenkeel.demo.observed.truths import Truth, TruthKind
from evenkeel.demo.script.conditions import Moment
from evenkeel.demo.script.scenario import LONG_DOCUMENTS, Cast, script
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec

START = 1_790_000_000.0
NUM_RANKS = 8
NUM_MICRO_BATCHES = 8
MODEL = ModelSpec(blocks=(BlockCost(forward_flops_per_token=1000.0, forward_flops_per_squared_length=1.0),) * 8)
LAYOUT = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=NUM_MICRO_BATCHES)
HEALTHY_SECONDS = 0.5
FLOPS_PER_SECOND = 1.2e8


@dataclass
class Run:
    """Builds a run step by step; ``finish`` turns it into observations.

    Attributes:
        held_up: How many times as long as it should a device's compute takes, because of this machine.
    """

    seed: int = 7
    now: float = START
    iteration: int = 0
    epoch: int = 0
    speeds: list[float] = field(default_factory=lambda: [1.0] * NUM_RANKS)
    incarnations: list[int] = field(default_factory=lambda: [0] * NUM_RANKS)
    layout_gain: float = 0.0
    lateness: float = 1.0
    held_up: dict[int, float] = field(default_factory=dict)
    truths: list[Truth] = field(default_factory=list)
    outcomes: list[StepOutcome] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.log = RunLog(job_id="demo")

    def train(self, count: int, *, long_documents: range = LONG_DOCUMENTS, pause_seconds: float = 0.0) -> None:
        for _ in range(count):
            self._iteration(long_documents, pause_seconds)
            pause_seconds = 0.0

    def _iteration(self, long_documents: range, pause_seconds: float) -> None:
        squares = 4e6 if self.iteration in long_documents else 1e6
        squares *= self.random.uniform(0.9, 1.1)
        batches = [MicroBatchSeen(index=i, tokens=1000, sum_of_squares=squares) for i in range(NUM_MICRO_BATCHES)]
        live = [rank for rank, speed in enumerate(self.speeds) if speed > 0]
        nominal = 8 * (1000 * 1000 + 1e6)
        work = 8 * (1000 * 1000 + squares)
        even = min(self.speeds[rank] for rank in live)
        proportional = sum(self.speeds) / NUM_RANKS
        pace = even + self.layout_gain * (proportional - even)
        seconds = HEALTHY_SECONDS * work / nominal / pace * self.random.gauss(1.0, 0.01) + pause_seconds
        loss = 2.5 + 3.0 * 0.99**self.iteration + 0.03 * self.random.random()
        self.reference.append(loss * (1 + self.random.uniform(-2e-6, 2e-6)))
        for rank in live:
            d, s, t = rank // 4, rank // 2 % 2, rank % 2
            flops = work * 3 * 4 / 4 * (1.0 if self.layout_gain == 0 else self.speeds[rank])
            self.log.add_sample(
                RankSample(
                    rank=rank,
                    incarnation=self.incarnations[rank],
                    iteration=self.iteration,
                    epoch=self.epoch,
                    started_at=self.now,
                    wall_seconds=seconds,
                    compute_seconds=flops
                    / FLOPS_PER_SECOND
                    / self.speeds[rank]
                    * self.random.gauss(self.lateness, 0.01)
                    * self.held_up.get(rank, 1.0),
                    flops=flops,
                    replica=d,
                    stage=s,
                    shard=t,
                    micro_batches=tuple(batches[d * 4 : d * 4 + 4]),
                    loss=loss,
                )
            )
        self.now += seconds
        self.iteration += 1

    def truth(self, kind: TruthKind, rank: int | None = None, throughput: float | None = None) -> Truth:
        truth = Truth(
            kind=kind,
            at=self.now + 0.1,
            iteration=self.iteration,
            epoch=self.epoch,
            rank=rank,
            incarnation=None if rank is None else self.incarnations[rank],
            throughput=throughput,
        )
        self.truths.append(truth)
        if rank is not None and throughput is not None:
            self.speeds[rank] = throughput
        return truth

    def verdict(self, kind: VerdictKind, rank: int, throughput: float, *, at: float | None = None) -> VerdictSeen:
        verdict = VerdictSeen(
            verdict_id=f"{kind}-{rank}-{self.iteration}",
            kind=kind,
            culprits=(CulpritSeen(rank=rank, incarnation=self.incarnations[rank], node="node-0", device="gpu-0"),),
            throughput=throughput,
            throughput_margin=0.02,
            confidence=0.999,
            first_iteration=self.iteration,
            decided_iteration=self.iteration,
            decided_at=self.now + 0.2 if at is None else at,
            received_at=self.now + 0.21,
            evidence=("computes at half the speed of its peers",),
        )
        self.log.add_verdict(verdict)
        return verdict

    def plan(self, *, predicted: float, bound: float, gain: float, layout: Layout = LAYOUT) -> str:
        self.epoch += 1
        self.layout_gain = gain
        plan_id = f"plan-{self.epoch}"
        for number, state in enumerate((PlanState.PROPOSED, PlanState.COMMITTED, PlanState.APPLIED)):
            self._plan_state(plan_id, state, self.now + 0.25 + number / 50, predicted, bound, 0.0, layout)
        return plan_id

    def measured(self, plan_id: str, seconds: float) -> None:
        newest = self.log.states_of(plan_id)[PlanState.APPLIED]
        self._plan_state(
            plan_id,
            PlanState.MEASURED,
            self.now + 0.4,
            newest.predicted_seconds,
            newest.proportional_bound,
            seconds,
            newest.layout,
        )

    def _plan_state(
        self, plan_id: str, state: PlanState, at: float, predicted: float, bound: float, measured: float, layout: Layout
    ) -> None:
        self.log.add_plan(
            PlanSeen(
                plan_id=plan_id,
                incident_id=f"incident-{plan_id}",
                state=state,
                epoch=self.epoch,
                layout=layout,
                actions=(
                    ActionSeen(lever="tensor_width", description="rank 3 gets 1 of 3 shares", gain_seconds=0.2),
                    ActionSeen(lever="micro_batch_quota", description="replica 1 runs 3 of 8", gain_seconds=0.1),
                ),
                idle_seconds=1.0,
                predicted_seconds=predicted,
                measured_seconds=measured,
                cost_seconds=0.1,
                proportional_bound=bound,
                alternatives=(AlternativeSeen(name="layer_split", predicted_seconds=0.7, reason="slower <by> 10 %"),),
                reason="Rank 3 computes at half its speed; narrower shards cost less than idle peers.",
                solve_seconds=0.004,
                at=at,
                received_at=at + 0.01,
                first_iteration=self.iteration,
            )
        )

    def step(self, number: int, *, missing: tuple[str, ...] = ()) -> None:
        steps = script(Cast(slow=3, killed=6, slow_later=0), NUM_RANKS)
        self.outcomes.append(
            StepOutcome(
                step=steps[number],
                began=Moment(at=self.now - 1, iteration=self.iteration, epoch=self.epoch),
                ended_at=self.now,
                missing=missing,
            )
        )

    def finish(self) -> Observations:
        counts = Counter(
            (sample.rank, sample.incarnation, sample.epoch)
            for _, samples in self.log.iterations()
            for sample in samples
        )
        history = HistoryFacts(
            rollups=tuple(
                RollupWindow(
                    rank=rank,
                    incarnation=incarnation,
                    epoch=epoch,
                    first_iteration=0,
                    stop_iteration=self.iteration,
                    num_iterations=count,
                )
                for (rank, incarnation, epoch), count in sorted(counts.items())
            ),
            verdict_ids=frozenset(verdict.verdict_id for verdict in self.log.verdicts),
            plan_states=frozenset((plan.plan_id, plan.state) for plan in self.log.plans),
            queries=(
                QueryResult(
                    title="Failures by node, kind and week",
                    sql="SELECT node, kind, week, failures\nFROM failures_by_node\nWHERE failures > 0",
                    columns=("node", "kind", "week", "failures"),
                    rows=(("node-0", "compute_slow", "2026-11-16", "2"), ("node-1", "fail_stop", "2026-11-16", "1")),
                ),
            ),
        )
        return Observations(
            log=self.log,
            truths=tuple(self.truths),
            outcomes=tuple(self.outcomes),
            model=MODEL,
            layout=LAYOUT,
            flops_per_second=FLOPS_PER_SECOND,
            reference_losses=tuple(self.reference),
            history=history,
            long_documents=LONG_DOCUMENTS,
        )


def whole_run() -> Run:
    """The scenario as it should go."""
    run = Run()
    run.train(34)
    run.truth(TruthKind.LONG_DOCUMENTS)
    run.train(14)
    run.step(0)
    run.truth(TruthKind.COMPUTE_SLOW, 3, 0.5)
    run.train(3)
    run.verdict(VerdictKind.COMPUTE_SLOW, 3, 0.51)
    plan = run.plan(predicted=0.55, bound=7.5 / 8, gain=0.9)
    run.train(14)
    run.measured(plan, 0.56)
    run.truth(TruthKind.RECOVERED, 3, 1.0)
    run.train(4)
    run.verdict(VerdictKind.RECOVERED, 3, 1.0)
    run.measured(run.plan(predicted=0.5, bound=1.0, gain=0.0), 0.5)
    run.train(12)
    run.truth(TruthKind.FAIL_STOP, 6, 0.0)
    run.log.add_process(
        ProcessSeen(kind="died", rank=6, incarnation=0, at=run.now + 0.1, received_at=run.now + 0.1, detail="SIGKILL")
    )
    run.verdict(VerdictKind.FAIL_STOP, 6, 0.0, at=run.now + 0.15)
    run.measured(run.plan(predicted=0.6, bound=7 / 8, gain=0.9), 0.61)
    run.train(1, pause_seconds=0.4)
    run.train(12)
    run.incarnations[6] = 1
    run.truth(TruthKind.REJOINED, 6, 1.0)
    run.speeds[6] = 0.0
    run.verdict(VerdictKind.REJOINED, 6, 1.0)
    run.train(1)
    run.speeds[6] = 1.0
    run.measured(run.plan(predicted=0.5, bound=1.0, gain=0.0), 0.5)
    run.train(12)
    run.truth(TruthKind.DETECTOR_KILLED)
    run.train(6)
    run.truth(TruthKind.SCHEDULER_KILLED)
    run.train(6)
    run.truth(TruthKind.COMPUTE_SLOW, 0, 0.6)
    run.train(3)
    run.verdict(VerdictKind.COMPUTE_SLOW, 0, 0.59)
    run.measured(run.plan(predicted=0.54, bound=7.6 / 8, gain=0.9), 0.55)
    run.train(14)
    return run
