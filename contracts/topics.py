"""Every topic of Evenkeel in one table: producers, consumers, ``evenkeel topics apply`` and the docs read it.

The key of every record is the job id in UTF-8, so a job's records stay in order and all of a job's ranks reach one
consumer. All topics have the same number of partitions, so that a job has the same one in each. Breaking changes of a
message get a new topic with a higher version.
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DEAD_LETTER_SUFFIX = ".dlq"
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
DEFAULT_NUM_PARTITIONS = 64
"""Of each topic, unless ``evenkeel topics apply --partitions`` says otherwise; as many services can share the jobs."""
PROFILE_EVERY = 5
"""A job's profile is told in every so many frames without marks; a frame is of one iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic.

    Attributes:
        name: ``evenkeel.<area>.<thing>.v<version>``.
        message: Full protobuf name of the value.
        producer: Who writes it.
        consumers: Who reads it; each consumed topic has a dead-letter topic.
        retention: How long records are kept; ignored for compacted topics.
        compacted: Keep the newest record of each key only.
        is_dated_by_broker: The time of a record is when the broker got it, whatever its producer's clock says.
        max_message_bytes: Largest batch of records that the broker takes; the default is the broker's own.
    """

    name: str
    message: str
    producer: str
    consumers: tuple[str, ...] = ()
    retention: timedelta = timedelta(days=7)
    compacted: bool = False
    is_dated_by_broker: bool = False
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    @property
    def dead_letter_name(self) -> str:
        """Where records go that cannot be read, original bytes and all."""
        return self.name + DEAD_LETTER_SUFFIX


BATCHES = Topic(
    name="evenkeel.telemetry.batches.v1",
    message="evenkeel.telemetry.v2.Batch",
    producer="trainer_sdk",
    consumers=("telemetry",),
    retention=timedelta(days=1),
    is_dated_by_broker=True,
)
FRAMES = Topic(
    name="evenkeel.telemetry.frames.v1",
    message="evenkeel.telemetry.v2.Observation",
    producer="telemetry",
    consumers=("detector",),
    # A frame holds an iteration of every rank: 4,096 ranks with eight micro-batches are more than the usual megabyte.
    max_message_bytes=16 * 1024 * 1024,
)
VERDICTS = Topic(
    name="evenkeel.detector.verdicts.v1",
    message="evenkeel.detector.v1.Verdict",
    producer="detector",
    consumers=("scheduler",),
    retention=timedelta(days=30),
)
PROFILES = Topic(
    name="evenkeel.detector.profiles.v1",
    message="evenkeel.detector.v1.Profile",
    producer="detector",
    consumers=("scheduler",),
    compacted=True,
)
SUSPICIONS = Topic(
    name="evenkeel.detector.suspicions.v1",
    message="evenkeel.detector.v1.Suspicion",
    producer="detector",
    consumers=("scheduler",),
    retention=timedelta(days=1),
)
PLANS = Topic(
    name="evenkeel.scheduler.plans.v1",
    message="evenkeel.scheduler.v1.Plan",
    producer="scheduler",
    retention=timedelta(days=30),
)

TOPICS = (BATCHES, FRAMES, VERDICTS, PROFILES, SUSPICIONS, PLANS)


def record_headers(topic: Topic, source: str, *, event_id: str | None = None) -> list[tuple[str, bytes]]:
    """Headers for one record of ``topic``: content type and CloudEvents 1.0 in Kafka's binary mode.

    Args:
        topic: Where the record goes.
        source: Who writes it, for example ``evenkeel/detector``.
        event_id: Natural id of the event where it has one, so that a repeated record keeps its id; else random.
    """
    return [
        ("content-type", b"application/protobuf"),
        ("ce_specversion", b"1.0"),
        ("ce_id", (event_id or uuid.uuid4().hex).encode()),
        ("ce_source", source.encode()),
        ("ce_type", topic.message.encode()),
        ("ce_time", datetime.now(UTC).isoformat().encode()),
    ]
