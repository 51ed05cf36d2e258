"""Runs migrations on the connection that :mod:`~evenkeel.history.migrate` passes in; one migrator per database."""

from alembic import context
from sqlalchemy import Connection, MetaData, text

from evenkeel.history.tables.base import NAMING_CONVENTION

# Any constant will do: it only has to differ from other programs' advisory locks in the same database.
_LOCK_KEY = 0x65766B6C


def _run() -> None:
    connection: Connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=MetaData(naming_convention=NAMING_CONVENTION),
        compare_server_default=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        context.run_migrations()


_run()
