"""Who is in charge of what, and how far those in charge have read; replaced in place."""

from datetime import datetime

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped

from evenkeel.history.tables.base import Base, Count, IntegerKey, TextKey


class LeaseRow(Base):
    """Who is in charge under a name, until when, and where to be found. Terms only grow."""

    __tablename__ = "leases"
    # Whoever changes a column of a unique index waits for everybody who holds the row: see the migration.
    __table_args__ = (UniqueConstraint("name", "term"),)

    name: Mapped[TextKey]
    term: Mapped[Count]
    holder: Mapped[str]
    address: Mapped[str]
    expires_at: Mapped[datetime]


class IntakeOffsetRow(Base):
    """The first offset of a partition that a reader has not dealt with."""

    __tablename__ = "intake_offsets"

    reader: Mapped[TextKey]
    topic: Mapped[TextKey]
    partition: Mapped[IntegerKey]
    next_offset: Mapped[Count]
