import asyncio
import uuid
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from evenkeel.contracts.columns import HAS_LOSS, ITERATION, LISTED, PRESENT, tell_process
from evenkeel.contracts.topics import BATCHES, PLANS, PROFILES, VERDICTS
from evenkeel.demo.observed.recorder import recording
from evenkeel.demo.observed.run_log import RunLog
from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.vocabulary import PlanState, VerdictKind
from evenkeel.layouts.codec import layout_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.scheduler.v1 import scheduler_pb2
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.telemetry.v2.batch_pb2 import Batch

pytestmark = pytest.mark.integration
LAYOUT = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=4)


def record(job_id: str, iteration: int) -> Batch:
    batch = Batch()
    tell_process(
        batch,
        job_id=job_id,
        rank=3,
        incarnation=1,
        epoch=2,
        replica=1,
        shard=1,
        num_dropped=2,
        forward_flops_per_token=7.0,
        forward_flops_per_squared_length=2.0,
        backward_multiple=2.0,
        num_iterations=1,
        num_events=1,
    )
    measured = {
        "iteration": iteration,
        "started_at_unix_seconds": 100.0,
        "wall_seconds": 0.5,
        "forward_seconds": 0.1,
        "backward_seconds": 0.2,
        "optimizer_seconds": 0.05,
        "tokens": 10,
        "sum_of_squares": 50.0,
        "loss": 3.5,
        "flags": PRESENT | HAS_LOSS,
        "num_listed": 1,
    }
    for column in ITERATION:
        getattr(batch, column.name).append(measured.get(column.name, 0))
    for column, value in zip(LISTED, (5, 10, 50.0, False), strict=True):
        getattr(batch, column.name).append(value)
    batch.events.add(at_unix_seconds=99.0, kind=process_pb2.PROCESS_EVENT_KIND_STARTED, rank=3, incarnation=1)
    return batch


def verdict(job_id: str) -> detector_pb2.Verdict:
    return detector_pb2.Verdict(
        verdict_id="v1",
        job_id=job_id,
        kind=detector_pb2.VERDICT_KIND_COMPUTE_SLOW,
        culprits=[detector_pb2.Culprit(rank=3, incarnation=1, node="node-0", device="gpu-3")],
        throughput=0.5,
        decided_at_unix_seconds=101.0,
        evidence=[detector_pb2.Evidence(name="compute seconds against peers", value=2.0, unit="ratio")],
    )


def plan(job_id: str) -> scheduler_pb2.Plan:
    return scheduler_pb2.Plan(
        plan_id="p1",
        job_id=job_id,
        state=scheduler_pb2.PLAN_STATE_APPLIED,
        epoch=3,
        layout=layout_to_proto(LAYOUT),
        actions=[scheduler_pb2.Action(lever="tensor_width", description="narrower", gain_seconds=0.2)],
        predicted_seconds=0.6,
        at=Timestamp(seconds=102, nanos=500_000_000),
        first_iteration=12,
    )


async def send(bootstrap: str, job_id: str, *messages: tuple[str, Message | bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await producer.start()
    try:
        for topic, message in messages:
            value = message if isinstance(message, bytes) else message.SerializeToString()
            await producer.send_and_wait(topic, value, key=job_id.encode())
    finally:
        await producer.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110 - the log has no event to wait for
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_everything_public_about_the_job_is_seen_and_nothing_else(kafka_bootstrap: str) -> None:
    job_id = f"demo-{uuid.uuid4().hex[:8]}"
    log = RunLog(job_id=job_id)
    await send(kafka_bootstrap, job_id, (BATCHES.name, record(job_id, 1)))
    async with recording(kafka_bootstrap, log):
        await send(
            kafka_bootstrap,
            job_id,
            (BATCHES.name, record("somebody-else", 8)),
            (BATCHES.name, b"\xff\xff not a record"),
            (BATCHES.name, record(job_id, 7)),
            (BATCHES.name, record(job_id, 7)),
            (VERDICTS.name, verdict(job_id)),
            (PROFILES.name, detector_pb2.Profile(job_id=job_id, iteration=7, iteration_seconds=0.5)),
            (PLANS.name, plan(job_id)),
        )
        await until(lambda: bool(log.plans and log.verdicts and log.profiles and log.last_iteration == 7))
    assert [iteration for iteration, _ in log.iterations()] == [7]
    (sample,) = log.samples_of(7)
    assert (sample.rank, sample.replica, sample.stage, sample.shard, sample.loss) == (3, 1, 0, 1, 3.5)
    assert sample.flops == (7.0 * 10 + 2.0 * 50) * 3
    assert sample.compute_seconds == pytest.approx(0.3)
    assert sample.ended_at == 100.5
    assert [event.kind for event in log.processes] == ["started"]
    assert log.num_unreadable == 1
    assert log.num_dropped == {(3, 1): 2}
    assert (log.verdicts[0].kind, log.verdicts[0].throughput) == (VerdictKind.COMPUTE_SLOW, 0.5)
    assert (log.plans[0].state, log.plans[0].at, log.plans[0].layout) == (PlanState.APPLIED, 102.5, LAYOUT)
