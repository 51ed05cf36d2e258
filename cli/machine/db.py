"""``evenkeel db``: the history's database."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import psycopg
import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import setting
from evenkeel.cli.terminal.output import say
from evenkeel.history.prune import prune_rollups
from evenkeel.stack.postgres.databases import upgrade_database

app = typer.Typer(help="The history's database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The history's database."""


@app.command()
def upgrade(context: typer.Context) -> None:
    """Bring the schema to the newest migration; nothing happens when it is there.

    Example: evenkeel db upgrade
    """
    upgrade_database(setting(context, "EVENKEEL_DATABASE_URL"))
    say("The database is up to date.")


@app.command()
def prune(
    context: typer.Context,
    days: Annotated[int, typer.Option("--older-than-days", min=1, max=36_500, help="Keep what is newer than this.")],
) -> None:
    """Delete old rollups: times and losses per rank and window. Verdicts, incidents and plans stay for ever.

    Example: evenkeel db prune --older-than-days 90
    """
    before = datetime.now(UTC) - timedelta(days=days)
    database_url = setting(context, "EVENKEEL_DATABASE_URL")
    try:
        deleted = sum(prune_rollups(database_url, before))
    except psycopg.Error as error:
        problem = " ".join(str(error).split())
        raise CommandError(
            f"rollups cannot be deleted: {problem}",
            next_step="check EVENKEEL_DATABASE_URL, or: evenkeel db upgrade",
            status=ExitStatus.UNHEALTHY,
        ) from error
    say(f"Deleted {deleted} rollups of windows before {before:%Y-%m-%d %H:%M} UTC.")
