"""Runs migrations on the connection that :mod:`~evenkeel.history.migrate` passes in; one migrator per database."""

from alembic import context
from sqlalchemy import Connection, MetaData, text

_NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
# Any constant will do: it only has to differ from other programs' advisory locks in the same database.
_LOCK_KEY = 0x65766B6C


def _run() -> None:
    connection: Connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=MetaData(naming_convention=_NAMING_CONVENTION),
        transactional_ddl=True,
    )
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        context.run_migrations()


_run()
