"""``evenkeel verdicts``: everything that the detector found, also what leads to no incident."""

from typing import Annotated

import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.fleet.client import fleet_client
from evenkeel.cli.fleet.messages import verdict_kinds, verdict_row
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.newest import USUALLY_SHOWN, MostOption, newest
from evenkeel.cli.terminal.output import OutputFormat, show_json, show_record, show_rows

app = typer.Typer(help="What the detector found, with its evidence.", no_args_is_help=True)

COLUMNS = {
    "verdict_id": "VERDICT",
    "job_id": "JOB",
    "kind": "KIND",
    "culprits": "CULPRITS",
    "throughput": "THROUGHPUT",
    "confidence": "CONFIDENCE",
    "first_iteration": "SINCE ITERATION",
    "decided_iteration": "DECIDED",
    "decided_at": "AT",
}
EVIDENCE_COLUMNS = {"name": "EVIDENCE", "value": "VALUE", "unit": "UNIT", "text": "WHAT IT SAYS"}

JobOption = Annotated[str, typer.Option("--job", help="Only this job's.")]


@app.command("list")
def list_verdicts(
    context: typer.Context,
    job: JobOption = "",
    kind: Annotated[str, typer.Option("--kind", help="Only of this kind, for example stage_imbalance.")] = "",
    most: MostOption = USUALLY_SHOWN,
    output: OutputOption = None,
) -> None:
    """List the verdicts, newest first: failures, recoveries, and findings that are only advice.

    Example: evenkeel verdicts list --job demo --kind stage_imbalance
    """
    if kind not in ("", *verdict_kinds()):
        raise CommandError(
            f"there is no kind {kind!r}", next_step=f"one of: {', '.join(verdict_kinds())}", status=ExitStatus.USAGE
        )
    with fleet_client(context) as client:
        found = (verdict_row(verdict) for verdict in client.verdicts(job))
        rows = newest((row for row in found if kind in ("", row["kind"])), most)
        if not rows:
            client.require_job(job)
    show_rows(rows, COLUMNS, output_of(context, output))


@app.command()
def explain(
    context: typer.Context,
    verdict_id: Annotated[str, typer.Argument(metavar="VERDICT_ID", help="Id of the verdict.")],
    job: JobOption = "",
    output: OutputOption = None,
) -> None:
    """Show a verdict with the evidence it rests on and, last, what to do about it: also what the scheduler noted of it.

    Example: evenkeel verdicts list && evenkeel verdicts explain VERDICT_ID
    """
    with fleet_client(context) as client:
        verdict = next((one for one in client.verdicts(job) if one.verdict_id == verdict_id), None)
        if verdict is None:
            raise CommandError(
                f"there is no verdict {verdict_id!r}", next_step="evenkeel verdicts list", status=ExitStatus.USAGE
            )
        incident = next((one for one in client.incidents(verdict.job_id) if one.verdict_id == verdict_id), None)
    row = {**verdict_row(verdict), "notes": [] if incident is None else list(incident.notes)}
    if output_of(context, output) is OutputFormat.JSON:
        show_json(row)
        return
    apart = ("evidence", "facts", "notes")
    show_record({key: value for key, value in row.items() if key not in apart}, OutputFormat.TABLE)
    show_rows(row["facts"], EVIDENCE_COLUMNS, OutputFormat.TABLE)
    for note in row["notes"]:
        print(note)
