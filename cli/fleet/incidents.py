"""``evenkeel incidents``: failures from first verdict to resolution."""

from typing import Annotated

import typer

from evenkeel.cli.fleet.client import fleet_client
from evenkeel.cli.fleet.messages import incident_row
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.newest import USUALLY_SHOWN, MostOption, newest
from evenkeel.cli.terminal.output import show_rows

app = typer.Typer(help="Failures, from first verdict to resolution.", no_args_is_help=True)

COLUMNS = {
    "incident_id": "INCIDENT",
    "job_id": "JOB",
    "kind": "KIND",
    "culprits": "CULPRITS",
    "throughput": "THROUGHPUT",
    "first_iteration": "SINCE ITERATION",
    "opened_at": "OPENED",
    "resolved_at": "RESOLVED",
    "lost_seconds": "LOST SECONDS",
}


@app.callback()
def _group() -> None:
    """Failures, from first verdict to resolution."""


@app.command("list")
def list_incidents(
    context: typer.Context,
    job: Annotated[str, typer.Option("--job", help="Only this job's.")] = "",
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not resolved.")] = False,
    most: MostOption = USUALLY_SHOWN,
    output: OutputOption = None,
) -> None:
    """List the incidents, newest first.

    Example: evenkeel incidents list --job demo --open
    """
    with fleet_client(context) as client:
        found = (incident_row(incident) for incident in client.incidents(job))
        rows = newest((row for row in found if not only_open or row["resolved_at"] is None), most)
        if not rows:
            client.require_job(job)
    show_rows(rows, COLUMNS, output_of(context, output))
