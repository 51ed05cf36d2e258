"""The cost model against the engine: ``python -m benchmarks.planning.fidelity``.

The demo's job (TP 2 x PP 2 x DP 2, gloo, emulated devices) runs healthy; some devices become slow; the solver's layout
for those that are slow or gone is applied; they recover; the full shape is applied again; and so on. The job's samples
go through the telemetry service's rules, the detector and the scheduler's own state, in this process: what a plan was
predicted to take comes from what was known before it was applied, what it took is the scheduler's own measurement.
Devices are emulated: real compute, paced.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, chain, islice
from pathlib import Path

import torch

from benchmarks.planning.tables import percent, table, write_json
from evenkeel.demo.job import MainJob, main_job
from evenkeel.history.records import JobRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.offline.samples_stream import observations_of
from evenkeel.planning.costs.calibration import for_equal_work
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel
from evenkeel.planning.costs.replay import usual_seconds
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.detector.adapters.finding_codec import profile_to_proto
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job import JobDetector
from evenkeel.services.detector.domain.profile.profile import Profile
from evenkeel.services.scheduler.adapters.findings import decode_profile
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanInFlight
from evenkeel.services.scheduler.domain.profiles import JobProfile, on_profile
from evenkeel.services.scheduler.domain.restart import new_job
from evenkeel.services.scheduler.domain.transitions import on_applied
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.trainer_sdk.devices.emulated_device import EmulatedDevice
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, Links
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from evenkeel.trainer_sdk.emit.measured import Measured
from tests.integration.elastic.fleet import Fleet

GONE = 0.0
CASES: Mapping[str, Mapping[int, float]] = {
    "rank 5 at 0.5": {5: 0.5},
    "rank 2 at 0.25": {2: 0.25},
    "rank 3 gone": {3: GONE},
    "rank 1 at 0.6, rank 6 at 0.4": {1: 0.6, 6: 0.4},
    "ranks 0 and 1 at 0.5": {0: 0.5, 1: 0.5},
    "rank 7 gone, rank 4 at 0.5": {7: GONE, 4: 0.5},
    "ranks 2 and 3 gone": {2: GONE, 3: GONE},
    "rank 0 at 0.8": {0: 0.8},
}
SHAPES: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "TP 3 and 1, 2 replicas": (((6, 3), (2, 1)), ((6, 3), (2, 1))),
    "TP 4, 2 replicas": (((8, 4),), ((8, 4),)),
    "TP 3, 2 replicas, 2 idle": (((8, 3),), ((8, 3),)),
    "TP 4 x PP 2, 1 replica": (((4, 4), (4, 4)),),
    "TP 2, 4 replicas": (((8, 2),),) * 4,
    "PP 2, 4 replicas": (((4, 1), (4, 1)),) * 4,
    "8 replicas": (((8, 1),),) * 8,
}
"""Layouts with nothing broken: of each stage of each replica its blocks and devices; devices are taken in order."""
HEALTHY: Mapping[int, float] = {}
_WHERE = Partition("profiles", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Devices change, and then the layout.

    Attributes:
        name: What is wrong; "home" where nothing is.
        speeds: Of devices that are not healthy; 0 = gone.
        layout: Layout.
    """

    name: str
    speeds: Mapping[int, float]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Step):
    """An epoch of the run.

    Attributes:
        num_iterations: Before devices change again.
    """

    num_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan.

    Attributes:
        plan: What was wrong when it was made.
        predicted_seconds: Per iteration, from what was known before it was applied.
        measured_seconds: As the scheduler measured it after a few iterations, for equal work.
        settled_seconds: The same over the newest 16 iterations of its stretch.
    """

    plan: str
    predicted_seconds: float
    measured_seconds: float
    settled_seconds: float

    @property
    def errors(self) -> tuple[float, float]:
        """Measured over predicted, less 1: after a few iterations and over the newest of the stretch."""
        return self.measured_seconds / self.predicted_seconds - 1.0, self.settled_seconds / self.predicted_seconds - 1.0


def main() -> None:
    """Runs the job and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="of each stretch")
    parser.add_argument("--pace", type=float, default=1.0, help="how many times slower than the demo's devices are")
    parser.add_argument("--link-bytes-per-second", type=float, default=math.inf, help="emulated; inf: as this machine")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("out/planning/fidelity.json"))
    options = parser.parse_args()
    job = main_job("fidelity", options.seed)
    steps = chain.from_iterable(PARTS[part](job) for part in options.parts)
    segments, samples = run(job, steps, options.iterations, options.pace, options.link_bytes_per_second)
    rows = list(rows_of(job, segments, samples))
    header = ["plan for", "predicted s", "measured s", "error %", "over 16 iterations s", "error %"]
    print(table(header, [_cells(row) for row in rows]))
    for words, place in (("after a few iterations", 0), ("over 16 iterations", 1)):
        errors = [abs(row.errors[place]) for row in rows]
        print(f"{words}: median error {percent(statistics.median(errors))} %, worst {percent(max(errors))} %")
    write_json(options.json, [asdict(row) | {"errors": row.errors} for row in rows])


def run(
    job: MainJob,
    steps: Iterable[Step],
    num_iterations: int,
    pace: float = 1.0,
    link_bytes_per_second: float = math.inf,
) -> tuple[list[Segment], dict[int, dict[int, Measured]]]:
    """Runs the job at home and then through all steps.

    Args:
        job: Job.
        steps: What is to come.
        num_iterations: Under each layout; devices change half as long before the layout does, so that they are noticed.
        pace: How many times slower than the job's devices are.
        link_bytes_per_second: Of the emulated link between each two ranks; infinite = what this machine takes.

    Returns:
        The epochs, and samples by iteration and rank.
    """
    torch.set_num_threads(1)
    everybody = dict.fromkeys(job.layout.ranks, 1.0)
    segments = [Segment(name="home", speeds=HEALTHY, layout=job.layout, num_iterations=num_iterations)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speeds"
        speed_table = SpeedTable.create(path, len(everybody))

        def device(rank: int) -> EmulatedDevice:
            mine = SpeedTable(path)
            return EmulatedDevice(flops_per_second=job.flops_per_second / pace, speed=lambda: mine.speed(rank))

        def links() -> Links | None:
            return EmulatedLinks(bytes_per_second=link_bytes_per_second) if link_bytes_per_second < math.inf else None

        fleet = Fleet(job.config, job.layout, make_device=device, make_links=links)

        def go_on(count: int) -> None:
            fleet.reached(max(fleet.samples, default=-1) + count)

        try:
            go_on(num_iterations)
            for step in steps:
                for rank, speed in {**everybody, **step.speeds}.items():
                    if speed > GONE:
                        speed_table.set_speed(rank, speed)
                go_on(num_iterations // 2)
                fleet.boundary(step.layout)
                segments.append(
                    Segment(name=step.name, speeds=step.speeds, layout=step.layout, num_iterations=num_iterations)
                )
                go_on(num_iterations)
        finally:
            fleet.close()
        return segments, fleet.samples


def _shapes(job: MainJob) -> Iterator[Step]:
    """Layouts of other widths and other numbers of replicas, home after each."""
    for name, replicas in SHAPES.items():
        ranks = iter(job.layout.ranks)
        stages = [[(blocks, tuple(islice(ranks, width))) for blocks, width in replica] for replica in replicas]
        quota, rest = divmod(job.layout.num_micro_batches, len(replicas))
        assert not rest, f"{name}: as many micro-batches everywhere"
        layout = replace(
            job.layout,
            replicas=tuple(Replica(stages=_stages(each), num_micro_batches=quota) for each in stages),
            standbys=tuple(ranks),
        )
        yield Step(name=name, speeds=HEALTHY, layout=layout)
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


def _stages(each: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Stage, ...]:
    """Stages of one replica from the blocks and ranks of each."""
    borders = accumulate((blocks for blocks, _ in each), initial=0)
    return tuple(
        Stage(first_block=first, stop_block=first + blocks, ranks=ranks, shares=(1,) * len(ranks))
        for first, (blocks, ranks) in zip(borders, each, strict=False)
    )


def _faults(job: MainJob) -> Iterator[Step]:
    """All faults, home after each."""
    for name, speeds in CASES.items():
        live = {rank: speeds.get(rank, 1.0) for rank in job.layout.ranks if speeds.get(rank, 1.0) > GONE}
        yield Step(name=name, speeds=speeds, layout=_planned(job, live))
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


PARTS = {"faults": _faults, "shapes": _shapes}


def _planned(job: MainJob, live: Mapping[int, float]) -> Layout:
    situation = Situation(
        layout=job.layout,
        home=job.layout,
        throughputs=live,
        cost=CostModel(job.model, ASSUMED_WORKLOAD),
        holders=frozenset(live),
    )
    return solve(situation).layout


def rows_of(job: MainJob, segments: Sequence[Segment], samples: Mapping[int, Mapping[int, Measured]]) -> Iterator[Row]:
    """What each plan was predicted to take and took, by the code of the services."""
    knowledge = new_job(
        JobRecord(
            job_id=job.config.job_id,
            name="",
            model=job.model,
            layout=job.layout,
            registered_at=datetime.now(UTC),
            job_token="-" * 16,
        )
    )
    detector, epoch = JobDetector(job.config.job_id), 0
    predicted = measured = settled = 0.0
    found: Mapping[int, float] = {}
    for observation in observations_of(batches_told(job.config.job_id, samples)):
        if isinstance(observation, FrameObservation) and observation.epoch != epoch:
            if epoch:
                yield Row(
                    plan=segments[epoch].name,
                    predicted_seconds=predicted,
                    measured_seconds=measured,
                    settled_seconds=settled,
                )
            epoch, measured = observation.epoch, 0.0
            live = _live(segments[epoch], found)
            knowledge, predicted = _applied(knowledge, segments[epoch], live, epoch, observation.iteration)
            planned_for, last = knowledge.workload, observation.iteration + segments[epoch].num_iterations
        for finding in detector.observe(observation):
            if not isinstance(finding, Profile):
                continue
            profile = _decoded(finding)
            knowledge, effect = on_profile(knowledge, profile)
            found = profile.throughputs
            measured = measured if effect is None else effect.seconds
            if epoch and finding.iteration < last and knowledge.workload is not None:
                cost = CostModel(job.model, knowledge.workload)
                settled = for_equal_work(cost, knowledge.layout, live, planned_for, finding.iteration_seconds)
    yield Row(
        plan=segments[epoch].name, predicted_seconds=predicted, measured_seconds=measured, settled_seconds=settled
    )


def _applied(
    job: JobKnowledge, segment: Segment, live: Mapping[int, float], epoch: int, first_iteration: int
) -> tuple[JobKnowledge, float]:
    """The job under its next layout, and what that was predicted to take."""
    if job.workload is None:
        raise SystemExit("the job had no profile when its layout changed: give it more --iterations")
    cost = CostModel(job.model, job.workload, job.correction)
    predicted = usual_seconds(cost, segment.layout, live, job.layout.mix)
    flight = PlanInFlight(
        plan_id=f"plan-{epoch}",
        mode=PlanMode.BOUNDARY,
        epoch=epoch,
        layout=segment.layout,
        incident_id=None,
        started_at_unix_seconds=0.0,
        throughputs=live,
    )
    applied = on_applied(
        replace(job, flight=flight),
        epoch=epoch,
        layout=segment.layout,
        plan_id=flight.plan_id,
        first_iteration=first_iteration,
        at=datetime.now(UTC),
    )
    return applied.job, predicted


def _live(segment: Segment, found: Mapping[int, float]) -> dict[int, float]:
    """Speeds as the detector has found them; as they are of devices that it has nothing to say of, or not yet."""
    actual = {rank: segment.speeds.get(rank, 1.0) for rank in segment.layout.ranks}
    return {
        rank: found[rank] if speed < 1.0 and found.get(rank, 1.0) < 1.0 else speed for rank, speed in actual.items()
    }


def batches_told(job_id: str, samples: Mapping[int, Mapping[int, Measured]]) -> Iterator[Batch]:
    """The iterations as ranks would have sent them."""
    builders: dict[int, BatchBuilder] = {}
    for iteration in sorted(samples):
        for rank, measured in sorted(samples[iteration].items()):
            source = Source(job_id=job_id, rank=rank, node="node", device=f"device-{rank}")
            yield from builders.setdefault(rank, BatchBuilder(source)).build(measured=[measured])


def _decoded(profile: Profile) -> JobProfile:
    """The profile as the scheduler gets it."""
    value = profile_to_proto(profile).SerializeToString()
    decoded = decode_profile(
        ConsumedRecord(partition=_WHERE, offset=0, timestamp_seconds=0.0, key=profile.job_id.encode(), value=value)
    )
    assert isinstance(decoded, JobProfile), "a job that goes on"
    return decoded


def _cells(row: Row) -> list[str]:
    early, late = row.errors
    return [
        row.plan,
        f"{row.predicted_seconds:.3f}",
        f"{row.measured_seconds:.3f}",
        f"{100 * early:+.1f}",
        f"{row.settled_seconds:.3f}",
        f"{100 * late:+.1f}",
    ]


if __name__ == "__main__":
    main()
