"""The declarative base: constraint names, column types, and the column kinds that every table shares."""

from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import BigInteger, DateTime, Double, Integer, LargeBinary, MetaData, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

Count = Annotated[int, mapped_column(BigInteger)]
"""Iterations, epochs, bytes, offsets: 64 bits."""

TextKey = Annotated[str, mapped_column(Text, primary_key=True)]
IntegerKey = Annotated[int, mapped_column(Integer, primary_key=True, autoincrement=False)]
CountKey = Annotated[int, mapped_column(BigInteger, primary_key=True, autoincrement=False)]
RecordedAt = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=text("clock_timestamp()"))]
"""When the row was written, by the database's clock; ``at`` columns say when the thing happened."""


class Base(DeclarativeBase):
    """Base of all tables; text is ``text``, floats are 8 bytes, times carry a zone, mappings are ``jsonb``."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {  # noqa: RUF012 - the name and form that SQLAlchemy reads
        str: Text,
        int: Integer,
        float: Double,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(none_as_null=True),
        list[dict[str, Any]]: JSONB,
    }
