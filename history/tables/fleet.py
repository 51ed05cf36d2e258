"""Jobs, their layouts and ranks, and the nodes and devices they ran on."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from evenkeel.history.tables.base import Base, Count, CountKey, IntegerKey, RecordedAt, TextKey


class JobRow(Base):
    """One job; what changes of it is in ``job_events`` and ``job_layouts``."""

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "registered_at", "job_id"), Index(None, "tenant"))

    job_id: Mapped[TextKey]
    tenant: Mapped[str]
    name: Mapped[str]
    model: Mapped[dict[str, Any]]
    num_devices: Mapped[int]
    registered_at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]


class JobSecretRow(Base):
    """A job's token; no reader role may see this table."""

    __tablename__ = "job_secrets"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    job_token: Mapped[str]


class JobEventRow(Base):
    """One change of a job's state; the newest is its state."""

    __tablename__ = "job_events"
    __table_args__ = (Index(None, "job_id", "job_event_id"),)

    job_event_id: Mapped[Count] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"))
    state: Mapped[str]
    at: Mapped[datetime]
    detail: Mapped[str] = mapped_column(server_default=text("''"))
    recorded_at: Mapped[RecordedAt]


class JobLayoutRow(Base):
    """The layout of one epoch of a job, from the moment it was decided (epoch 0: registered)."""

    __tablename__ = "job_layouts"
    __table_args__ = (ForeignKeyConstraint(["plan_id"], ["plans.plan_id"]),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    epoch: Mapped[CountKey]
    layout: Mapped[dict[str, Any]]
    plan_id: Mapped[str | None]
    at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]


class JobStateRow(Base):
    """How an unfinished job stands, for whoever goes on with it; replaced in place, gone with the job's end."""

    __tablename__ = "job_state"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    version: Mapped[Count]
    save_id: Mapped[str]
    document: Mapped[dict[str, Any]]
    plan_ids: Mapped[list[str]] = mapped_column(ARRAY(Text))


class JobSeatRow(Base):
    """The processes of one rank, as a part of :class:`JobStateRow`."""

    __tablename__ = "job_seats"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    rank: Mapped[IntegerKey]
    seat: Mapped[dict[str, Any]]


class NodeRow(Base):
    """One node the fleet has seen."""

    __tablename__ = "nodes"

    node: Mapped[TextKey]
    first_seen_at: Mapped[datetime]


class DeviceRow(Base):
    """One device of a node."""

    __tablename__ = "devices"

    node: Mapped[str] = mapped_column(ForeignKey("nodes.node"), primary_key=True)
    device: Mapped[TextKey]
    first_seen_at: Mapped[datetime]


class RankRow(Base):
    """One process of a rank: an incarnation, as it first registered."""

    __tablename__ = "ranks"
    __table_args__ = (
        ForeignKeyConstraint(["node", "device"], ["devices.node", "devices.device"]),
        Index(None, "node", "device"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    rank: Mapped[IntegerKey]
    incarnation: Mapped[IntegerKey]
    node: Mapped[str]
    device: Mapped[str]
    address: Mapped[str]
    process_id: Mapped[Count]
    registered_at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]
    can_reshape: Mapped[bool] = mapped_column(server_default=text("true"))


class RankExitRow(Base):
    """How a process of a rank ended, as it was first reported; it may never have registered."""

    __tablename__ = "rank_exits"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    rank: Mapped[IntegerKey]
    incarnation: Mapped[IntegerKey]
    code: Mapped[int]
    signal: Mapped[int]
    last_line: Mapped[str]
    lost_peer: Mapped[bool]
    at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]


class RankMoveRow(Base):
    """A process that registered again, from another address or as another process of its machine."""

    __tablename__ = "rank_moves"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "rank", "incarnation"], ["ranks.job_id", "ranks.rank", "ranks.incarnation"]),
        Index(None, "job_id", "rank", "incarnation", "rank_move_id"),
    )

    rank_move_id: Mapped[Count] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str]
    rank: Mapped[int]
    incarnation: Mapped[int]
    address: Mapped[str]
    process_id: Mapped[Count]
    at: Mapped[datetime]
    recorded_at: Mapped[RecordedAt]
