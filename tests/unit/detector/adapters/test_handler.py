"""The handler in the real consume loop over Kafka in memory: nothing is lost or found twice, whatever goes away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

import pytest
from prometheus_client import CollectorRegistry

from evenkeel.contracts.topics import FRAMES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.stream_records import SnapshotRecord
from evenkeel.services.common.kafka import ConsumeLoop, DeadLetters, LoopConfig, OutgoingRecord, Partition
from evenkeel.services.common.metrics import KafkaMetrics
from evenkeel.services.common.worker import Worker
from evenkeel.services.detector.adapters import guarded_detector
from evenkeel.services.detector.adapters import handler as handler_module
from evenkeel.services.detector.adapters.handler import DetectorHandler
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.adapters.snapshot_store import AnotherInstanceAheadError
from evenkeel.services.detector.domain.frames.observation import FrameObservation, Observation
from evenkeel.services.detector.domain.job.job import Finding, JobDetector
from evenkeel.services.detector.domain.processes.hang_watch import HangWatch
from evenkeel.services.detector.metrics import DetectorMetrics
from evenkeel.telemetry.v2 import frames_pb2 as pb
from evenkeel.telemetry.v2 import process_pb2
from tests.fakes.kafka import FakeBroker, FakeConsumer, FakeProducer
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from
from tests.unit.detector.wire import death, frame_to_proto, to_record


class FakeStore:
    def __init__(self) -> None:
        self.kept: dict[tuple[Partition, str], SnapshotRecord] = {}
        self.away = False
        self.num_failed = self.num_saved = 0
        self.most_at_once = 1_000
        self.answers = asyncio.Event()
        self.answers.set()

    async def load(self, partitions: Collection[Partition]) -> list[SnapshotRecord]:
        return [snapshot for (partition, _), snapshot in self.kept.items() if partition in partitions]

    async def save(self, snapshots: Sequence[SnapshotRecord]) -> None:
        self._check()
        if len(snapshots) > self.most_at_once:
            self.num_failed += 1
            raise OSError("the fake store is too slow for so many")
        await self.answers.wait()
        self.num_saved += len(snapshots)
        for snapshot in snapshots:
            key = Partition(snapshot.topic, snapshot.partition), snapshot.job_id
            if key in self.kept and self.kept[key].next_offset > snapshot.next_offset:
                raise AnotherInstanceAheadError(snapshot.job_id)
            self.kept[key] = snapshot

    async def forget(self, job_ids: Collection[str]) -> None:
        self._check()
        self.kept = {key: kept for key, kept in self.kept.items() if key[1] not in job_ids}

    def _check(self) -> None:
        if self.away:
            self.num_failed += 1
            raise OSError("the fake store is away")


class World:
    def __init__(self) -> None:
        self.broker, self.store = FakeBroker(), FakeStore()
        self.partition = Partition(FRAMES.name, 0)

    @contextlib.asynccontextmanager
    async def detector(
        self, *, snapshot_seconds: float = 0.0, forget_finished_seconds: float = 0.0
    ) -> AsyncIterator[asyncio.Task[None]]:
        """A detector that is killed at the end: no last checkpoint."""
        registry = CollectorRegistry()
        producer, metrics = FakeProducer(self.broker), KafkaMetrics(registry)
        worker = Worker()
        handler = DetectorHandler(
            producer,
            self.store,
            DetectorMetrics(registry),
            worker,
            iterations_per_false_alarm=100_000,
            snapshot_seconds=snapshot_seconds,
        )
        consumer = FakeConsumer(self.broker, topics=[FRAMES.name], group="detector")
        loop = ConsumeLoop(
            consumer,
            handler,
            decoders={FRAMES.name: decode_observations},
            dead_letters=DeadLetters(producer, metrics, group="detector"),
            metrics=metrics,
            worker=worker,
            config=LoopConfig(tick_seconds=0.02, max_records=7, checkpoint_seconds=0.0),
        )
        patch = pytest.MonkeyPatch()
        patch.setattr(handler_module, "FORGET_FINISHED_SECONDS", forget_finished_seconds)
        task = asyncio.create_task(loop.run())
        try:
            yield task
        finally:
            patch.undo()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def tell(self, *messages: pb.Observation) -> None:
        for message in messages:
            await self.broker.append(to_record(message))

    async def until_committed(self, offset: int) -> None:
        async with asyncio.timeout(250):
            while self.broker.committed.get(("detector", self.partition), 0) < offset:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def until_verdicts(self, count: int) -> None:
        async with asyncio.timeout(250):
            while len(self.broker.records(VERDICTS.name)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def verdicts(self) -> list[detector_pb2.Verdict]:
        return [detector_pb2.Verdict.FromString(record.value or b"") for record in self.broker.records(VERDICTS.name)]


def story(job_id: str = "job") -> list[pb.Observation]:
    frames = SyntheticJob(places=cube(), throughput=slow_from(2, 60, 0.6, stop=90)).frames(0, 120)
    messages = [frame_to_proto(frame, job_id, frame.iteration) for frame in frames]
    return [*messages, death(job_id, 120, rank=7, at_unix_seconds=1_120.5)]


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [(), (30,), (61, 62, 100), (5, 60, 91, 92, 119)])
async def test_killed_at_any_place_the_verdicts_are_those_of_one_life(kills: tuple[int, ...]) -> None:
    world, messages, told = World(), story(), 0
    for place in kills:
        async with world.detector():
            await world.tell(*messages[told:place])
            await world.until_committed(place)
        told = place
    async with world.detector():
        await world.tell(*messages[told:])
        await world.until_committed(len(messages))
    found = world.verdicts()
    assert [(verdict.kind, verdict.culprits[0].rank) for verdict in found] == [
        (detector_pb2.VERDICT_KIND_COMPUTE_SLOW, 2),
        (detector_pb2.VERDICT_KIND_RECOVERED, 2),
        (detector_pb2.VERDICT_KIND_FAIL_STOP, 7),
    ]


@pytest.mark.asyncio
async def test_without_a_snapshot_everything_is_read_again_and_found_under_the_same_ids() -> None:
    world, messages = World(), story()
    async with world.detector(snapshot_seconds=1_000.0):
        await world.tell(*messages)
        await world.until_verdicts(3)
    assert world.broker.committed.get(("detector", world.partition), 0) == 0
    async with world.detector(snapshot_seconds=1_000.0):
        await world.until_verdicts(6)
    ids = [verdict.verdict_id for verdict in world.verdicts()]
    assert ids[:3] == ids[3:]


@pytest.mark.asyncio
async def test_a_database_that_is_away_delays_commits_and_never_verdicts() -> None:
    world = World()
    world.store.away = True
    async with world.detector():
        await world.tell(*story())
        await world.until_verdicts(3)
        assert world.store.num_failed > 0
        assert world.broker.committed.get(("detector", world.partition), 0) == 0
        world.store.away = False
        await world.until_committed(121)


@pytest.mark.asyncio
async def test_a_database_that_hangs_delays_commits_and_never_verdicts() -> None:
    world = World()
    world.store.answers.clear()
    async with world.detector():
        await world.tell(*story())
        await world.until_verdicts(3)
        assert world.broker.committed.get(("detector", world.partition), 0) == 0
        assert world.store.kept == {}
        world.store.answers.set()
        await world.until_committed(121)


@pytest.mark.asyncio
async def test_more_jobs_than_can_be_saved_at_once_are_saved_one_part_after_the_other_and_forgotten() -> None:
    world, names = World(), [f"job-{number}" for number in range(7)]
    world.store.most_at_once = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler_module, "_MOST_SAVED_TOGETHER", 2)
        async with world.detector(forget_finished_seconds=0.05):
            stories = zip(*map(ended_story, names), strict=True)
            messages = [message for at_once in stories for message in at_once]
            await world.tell(*messages)
            await world.until_committed(len(messages))
            async with asyncio.timeout(20):
                while world.store.kept:
                    await world.tell(picture(28))
                    await asyncio.sleep(0.02)
    assert world.store.num_failed == 0


@pytest.mark.asyncio
async def test_killed_while_a_snapshot_hangs_nothing_is_lost() -> None:
    world, messages = World(), story()
    world.store.answers.clear()
    async with world.detector():
        await world.tell(*messages[:100])
        await world.until_verdicts(2)
    world.store.answers.set()
    async with world.detector():
        await world.tell(*messages[100:])
        await world.until_committed(len(messages))
    assert len({verdict.verdict_id for verdict in world.verdicts()}) == 3


class Failing(JobDetector):
    """Of one job: fails in iteration 30 if it has seen many others before, and in iteration 100 in any case."""

    def observe(self, observation: Observation) -> list[Finding]:
        iteration = observation.iteration if isinstance(observation, FrameObservation) else -1
        if self.job_id == "bad" and (iteration == 100 or (iteration == 30 and self._num_frames > 15)):
            raise ValueError("math domain error")
        return super().observe(observation)


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [(), (33, 104)])
async def test_a_job_whose_detector_fails_begins_anew_and_no_other_notices(
    kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_detector, "JobDetector", Failing)
    world, told = World(), 0
    messages = [each for pair in zip(story("bad"), story("good"), strict=True) for each in pair]
    for place in (*kills, len(messages)):
        async with world.detector():
            await world.tell(*messages[told:place])
            await world.until_committed(place)
        told = place
    found = {job: [one.kind for one in world.verdicts() if one.job_id == job] for job in ("good", "bad")}
    everything = [detector_pb2.VERDICT_KIND_COMPUTE_SLOW, detector_pb2.VERDICT_KIND_RECOVERED]
    assert found == {job: [*everything, detector_pb2.VERDICT_KIND_FAIL_STOP] for job in found}
    aside = world.broker.records(FRAMES.dead_letter_name)
    assert [pb.Observation.FromString(record.value or b"").frames.iteration[0] for record in aside] == [100]


class Unsavable(JobDetector):
    """Of one job: once it has seen many frames of its first ones, a field of it is nothing that can be written."""

    def observe(self, observation: Observation) -> list[Finding]:
        if self.job_id == "bad" and self._num_frames > 15 and self.iteration < 40:
            self._last_at = object()  # type: ignore[assignment]
        return super().observe(observation)


@pytest.mark.asyncio
async def test_a_job_of_which_no_snapshot_can_be_made_begins_anew_and_no_other_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_detector, "JobDetector", Unsavable)
    world, messages = World(), [each for pair in zip(story("bad"), story("good"), strict=True) for each in pair]
    async with world.detector() as running:
        for place in range(0, len(messages), 6):
            await world.tell(*messages[place : place + 6])
            await world.until_committed(min(place + 6, len(messages)))
        assert not running.done()
    found = {job: sum(one.job_id == job for one in world.verdicts()) for job in ("bad", "good")}
    assert found == {"bad": 3, "good": 3}
    assert {snapshot.job_id: snapshot.next_offset for snapshot in world.store.kept.values()} == {
        "bad": len(messages) - 1,
        "good": len(messages),
    }


@pytest.mark.asyncio
async def test_a_snapshot_that_cannot_be_taken_over_costs_one_job_what_it_knew() -> None:
    world, messages = World(), [each for pair in zip(story("bad"), story("good"), strict=True) for each in pair]
    async with world.detector():
        await world.tell(*messages[:40])
        await world.until_committed(40)
    (key,) = [key for key in world.store.kept if key[1] == "bad"]
    world.store.kept[key] = world.store.kept[key]._replace(state=dump(HangWatch()))
    async with world.detector():
        await world.tell(*messages[40:])
        await world.until_committed(len(messages))
    assert sorted(verdict.job_id for verdict in world.verdicts()) == ["bad"] * 3 + ["good"] * 3


@pytest.mark.asyncio
async def test_after_a_restart_a_job_is_taken_over_when_it_speaks_and_no_job_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, names = World(), [f"job-{number}" for number in range(20)]
    frames = list(SyntheticJob(places=cube()).frames(0, 6))
    stories = {name: [frame_to_proto(frame, name, frame.iteration) for frame in frames] for name in names}
    async with world.detector():
        await world.tell(*(stories[name][0] for name in names))
        await world.until_committed(20)
    taken_over: list[str] = []

    def noted(detector: JobDetector, snapshot: bytes) -> None:
        taken_over.append(detector.job_id)
        load(detector, snapshot)

    monkeypatch.setattr(guarded_detector, "load", noted)
    async with world.detector(forget_finished_seconds=1_000.0):
        await world.tell(*stories["job-7"][1:6])
        await world.until_committed(25)
        assert taken_over == ["job-7"]
        await world.tell(*stories["job-3"][1:6])
        await world.until_committed(30)
    assert taken_over == ["job-7", "job-3"]


@pytest.mark.asyncio
async def test_a_job_that_ended_before_a_restart_is_forgotten_after_it() -> None:
    world, messages = World(), ended_story()
    async with world.detector(forget_finished_seconds=1_000.0):
        await world.tell(*messages)
        await world.until_committed(len(messages))
    assert world.store.kept
    async with world.detector():
        await world.tell(*story("other")[:5])
        await world.until_committed(len(messages) + 5)
        async with asyncio.timeout(20):
            while (world.partition, "job") in world.store.kept:
                await world.tell(picture(28, job_id="other"))
                await asyncio.sleep(0.02)
    assert (world.partition, "other") in world.store.kept


@pytest.mark.asyncio
async def test_poison_goes_aside_and_jobs_do_not_disturb_one_another() -> None:
    world = World()
    async with world.detector():
        for first, second in zip(story("first"), story("second"), strict=True):
            await world.tell(first, second)
            if first.sequence % 40 == 0:
                await world.broker.append(OutgoingRecord(topic=FRAMES.name, key=b"x", value=b"\xff\xff"))
        await world.until_committed(246)
    assert len(world.broker.records(FRAMES.dead_letter_name)) == 4
    assert sorted(verdict.job_id for verdict in world.verdicts()) == ["first"] * 3 + ["second"] * 3


@pytest.mark.asyncio
async def test_an_instance_that_another_one_overtook_ends() -> None:
    world, messages = World(), story()
    async with world.detector() as task:
        await world.tell(*messages[:10])
        await world.until_committed(10)
        kept = world.store.kept[world.partition, "job"]
        world.store.kept[world.partition, "job"] = kept._replace(next_offset=1_000)
        await world.tell(*messages[10:20])
        with pytest.raises(AnotherInstanceAheadError):
            await task


def ended_story(job_id: str = "job") -> list[pb.Observation]:
    messages = story(job_id)[:20]
    for rank in range(8):
        ended = death(job_id, 20 + rank, rank=rank, at_unix_seconds=1_030.0 + rank)
        ended.liveness.event.kind = process_pb2.PROCESS_EVENT_KIND_FINISHED
        messages.append(ended)
    return messages


@pytest.mark.asyncio
async def test_the_last_frame_of_a_job_that_ended_does_not_make_deaths_of_its_ends() -> None:
    world, messages = World(), ended_story()
    again = death("job", 29, rank=3, at_unix_seconds=1_050.0)
    again.liveness.event.kind, again.liveness.event.incarnation = process_pb2.PROCESS_EVENT_KIND_STARTED, 1
    async with world.detector(forget_finished_seconds=1000.0):
        await world.tell(*messages)
        await world.until_committed(len(messages))
        late = story()[20]
        late.sequence = 28
        await world.tell(late, again)
        await world.until_committed(len(messages) + 2)
    assert [verdict.kind for verdict in world.verdicts()] == [detector_pb2.VERDICT_KIND_REJOINED]


def picture(sequence: int, *, job_id: str = "job") -> pb.Observation:
    """Nobody is anywhere else than before."""
    message = pb.Observation(job_id=job_id, sequence=sequence)
    message.liveness.at_unix_seconds = 1_200.0 + sequence
    return message


@pytest.mark.asyncio
async def test_a_job_that_ended_is_forgotten_whatever_pictures_still_come() -> None:
    world, messages, sequence = World(), ended_story(), 28
    async with world.detector(forget_finished_seconds=0.05):
        await world.tell(*messages)
        await world.until_committed(len(messages))
        async with asyncio.timeout(20):
            while world.store.kept or not world.store.num_saved:
                await world.tell(picture(sequence))
                sequence += 1
                await asyncio.sleep(0.02)
        await world.until_committed(sequence)
    assert world.verdicts() == []
    assert world.store.kept == {}


@pytest.mark.asyncio
async def test_pictures_that_say_nothing_new_are_read_and_cost_no_snapshot() -> None:
    world, messages = World(), story()
    async with world.detector():
        await world.tell(*messages)
        await world.until_committed(len(messages))
        num_saved = world.store.num_saved
        await world.tell(*map(picture, range(len(messages), len(messages) + 20)))
        await world.until_committed(len(messages) + 20)
    assert world.store.num_saved == num_saved > 0
