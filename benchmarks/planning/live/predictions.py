"""What each plan of a run was predicted to take and took, by the code of the services, in this process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from benchmarks.planning.live.engine_run import Segment
from evenkeel.demo.script.job import MainJob
from evenkeel.history.records import JobRecord, PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.offline.samples.stream import observations_of
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.measured.calibration import for_equal_work
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.detector.adapters.finding_codec import profile_to_proto
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.scheduler.adapters.findings import decode_profile
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, new_job
from evenkeel.services.scheduler.domain.parts import PlanInFlight
from evenkeel.services.scheduler.domain.profiles import JobProfile, on_profile
from evenkeel.services.scheduler.domain.transitions import on_applied
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from evenkeel.trainer_sdk.emit.measured import Measured

_WHERE = Partition("profiles", 0)


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
            knowledge, effect_seconds = on_profile(knowledge, profile)
            found = profile.throughputs
            measured = measured if effect_seconds is None else effect_seconds
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
    predicted = Replay(cost, job.layout.mix).seconds(segment.layout, live)
    now = datetime.now(UTC)
    plan = PlanRecord(
        plan_id=f"plan-{epoch}",
        job_id=job.job_id,
        mode=PlanMode.BOUNDARY,
        epoch=epoch,
        layout=segment.layout,
        proposed_at=now,
        throughputs=live,
    )
    applied = on_applied(replace(job, flight=PlanInFlight(record=plan)), first_iteration=first_iteration, at=now)
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
