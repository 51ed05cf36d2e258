"""``evenkeel db``: the history's database."""

import typer

from cli.output import say
from cli.session import setting
from stack.databases import upgrade_database

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
