"""What the services keep beside the history: rollups, the detector's snapshots, the outbox, and who may read what."""

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from evenkeel.history.tables.base import Base, Count, CountKey, IntegerKey, RecordedAt, TextKey


class RankRollupRow(Base):
    """One rank over a window of iterations. No foreign key: a job trains and reports without being registered.

    All ``*_seconds`` are means per iteration of the window unless the name says otherwise.
    """

    __tablename__ = "rank_rollups"
    __table_args__ = (Index(None, "started_at"), Index(None, "node", "started_at"))

    job_id: Mapped[TextKey]
    rank: Mapped[IntegerKey]
    incarnation: Mapped[IntegerKey]
    epoch: Mapped[CountKey]
    first_iteration: Mapped[CountKey]
    stop_iteration: Mapped[Count]
    num_iterations: Mapped[int]
    node: Mapped[str]
    device: Mapped[str]
    started_at: Mapped[datetime]
    wall_seconds: Mapped[float]
    wall_seconds_min: Mapped[float]
    wall_seconds_max: Mapped[float]
    forward_seconds: Mapped[float]
    backward_seconds: Mapped[float]
    optimizer_seconds: Mapped[float]
    data_seconds: Mapped[float]
    tensor_wait_seconds: Mapped[float]
    pipeline_wait_seconds: Mapped[float]
    gradient_wait_seconds: Mapped[float]
    vote_wait_seconds: Mapped[float]
    tokens: Mapped[Count]
    sum_of_squares: Mapped[float]
    loss: Mapped[float | None]
    peak_memory_bytes: Mapped[Count]
    recorded_at: Mapped[RecordedAt]


class DetectorSnapshotRow(Base):
    """The newest state of one consumer for one job, and the offset it covers; replaced by each newer one."""

    __tablename__ = "detector_snapshots"

    consumer_group: Mapped[TextKey]
    topic: Mapped[TextKey]
    partition: Mapped[IntegerKey]
    job_id: Mapped[TextKey]
    next_offset: Mapped[Count]
    format: Mapped[str]
    state: Mapped[bytes]
    saved_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=text("clock_timestamp()"), server_onupdate=text("clock_timestamp()")
    )


class OutboxRow(Base):
    """A Kafka record that must go out because its transaction committed; deleted when it has."""

    __tablename__ = "outbox"
    __table_args__ = (UniqueConstraint("event_id"),)

    outbox_id: Mapped[Count] = mapped_column(primary_key=True, autoincrement=True)
    event_id: Mapped[str]
    topic: Mapped[str]
    key: Mapped[str]
    value: Mapped[bytes]
    headers: Mapped[dict[str, Any]]
    recorded_at: Mapped[RecordedAt]


class TenantGrantRow(Base):
    """The role may read the tenant's history; ``*`` = every tenant."""

    __tablename__ = "tenant_grants"

    role_name: Mapped[TextKey]
    tenant: Mapped[TextKey]
