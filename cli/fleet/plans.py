"""``evenkeel plans``: what was done about failures, and why."""

from typing import Annotated

import typer

from evenkeel.cli.fleet.client import fleet_client
from evenkeel.cli.fleet.messages import incident_row, plan_row
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.newest import USUALLY_SHOWN, MostOption, newest
from evenkeel.cli.terminal.output import OutputFormat, show_json, show_rows

app = typer.Typer(help="What was done about failures, and why.", no_args_is_help=True)

COLUMNS = {
    "plan_id": "PLAN",
    "job_id": "JOB",
    "state": "STATE",
    "epoch": "EPOCH",
    "levers": "LEVERS",
    "idle_seconds": "WITHOUT IT",
    "predicted_seconds": "PREDICTED",
    "measured_seconds": "MEASURED",
    "proportional_bound": "BOUND",
    "at": "AT",
}


@app.command("list")
def list_plans(
    context: typer.Context,
    job: Annotated[str, typer.Option("--job", help="Only this job's.")] = "",
    most: MostOption = USUALLY_SHOWN,
    output: OutputOption = None,
) -> None:
    """List the plans, newest first; times are seconds per iteration.

    Example: evenkeel plans list --job demo
    """
    with fleet_client(context) as client:
        rows = newest((plan_row(plan) for plan in client.plans(job)), most)
        if not rows:
            client.require_job(job)
    show_rows(rows, COLUMNS, output_of(context, output))


@app.command()
def explain(
    context: typer.Context,
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="Id of the plan.")],
    output: OutputOption = None,
) -> None:
    """Say why a plan was chosen, what it beat, and what came of it.

    Example: evenkeel plans list && evenkeel plans explain PLAN_ID
    """
    with fleet_client(context) as client:
        response = client.explain_plan(plan_id)
    if output_of(context, output) is OutputFormat.JSON:
        incident = incident_row(response.incident) if response.HasField("incident") else None
        show_json({"plan": plan_row(response.plan), "incident": incident, "text": response.text})
        return
    print(response.text)
