"""``evenkeel jobs``: what the fleet trains."""

import os
import secrets
import shlex
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from evenkeel.cli.fleet.client import fleet_client
from evenkeel.cli.fleet.messages import job_row, plan_row, rank_rows, standing_row, verdict_row
from evenkeel.cli.session import OutputOption, output_of, setting
from evenkeel.cli.terminal.newest import USUALLY_SHOWN, MostOption, newest
from evenkeel.cli.terminal.output import OutputFormat, say, show_json, show_json_line, show_record, show_rows
from evenkeel.cli.terminal.watch_lines import WatchLines
from evenkeel.scheduler.v1 import scheduler_pb2

app = typer.Typer(help="What the fleet trains.", no_args_is_help=True)

_MOST_RANKS = 100_000
JobArgument = Annotated[str, typer.Argument(metavar="JOB_ID", help="Id of the job.")]
JOB_COLUMNS = {
    "job_id": "JOB",
    "state": "STATE",
    "reshapable": "RESHAPABLE",
    "epoch": "EPOCH",
    "ranks_training": "TRAINING",
    "ranks": "RANKS",
    "slowest_throughput": "SLOWEST",
    "proportional_bound": "BOUND",
    "registered_at": "REGISTERED",
}
RANK_COLUMNS = {
    "rank": "RANK",
    "incarnation": "INCARNATION",
    "node": "NODE",
    "device": "DEVICE",
    "alive": "ALIVE",
    "throughput": "THROUGHPUT",
    "address": "CONTROLLER",
}


@app.command("list")
def list_jobs(
    context: typer.Context,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that have not finished.")] = False,
    most: MostOption = USUALLY_SHOWN,
    output: OutputOption = None,
) -> None:
    """List the jobs, newest first.

    Example: evenkeel jobs list --open
    """
    with fleet_client(context) as client:
        jobs = (job for job in client.jobs() if not only_open or job.state != scheduler_pb2.JOB_STATE_FINISHED)
        rows = newest(map(job_row, jobs), most)
    show_rows(rows, JOB_COLUMNS, output_of(context, output))


@app.command()
def register(
    context: typer.Context,
    job_id: JobArgument,
    ranks: Annotated[
        int, typer.Option("--ranks", min=1, max=_MOST_RANKS, help="Its processes, or replicas, numbered from 0.")
    ],
    micro_batches: Annotated[
        int,
        typer.Option(
            "--micro-batches",
            min=0,
            max=_MOST_RANKS,
            help="Of a step, if its loop is one of replicas: plans share them out.",
        ),
    ] = 0,
    output: OutputOption = None,
) -> None:
    """Make a job with a training loop of its own known, and print the settings that its processes need.

    It is watched: verdicts, incidents and history. Nobody can reshape it, but for who runs how many micro-batches where
    its ranks are replicas (run.replicate). Give the output to your shell's eval, then start torchrun. 'evenkeel run'
    registers its jobs itself.

    Example: evenkeel jobs register mine --ranks 4
    """
    names = ("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "EVENKEEL_FLEET_ADDRESS")
    settings = {name: setting(context, name) for name in names}
    token = os.environ.get("EVENKEEL_JOB_TOKEN") or secrets.token_urlsafe(24)
    with fleet_client(context) as client:
        client.register_plain_job(job_id, num_ranks=ranks, token=token, num_micro_batches=micro_batches)
    settings |= {"EVENKEEL_JOB_ID": job_id, "EVENKEEL_JOB_TOKEN": token}
    if output_of(context, output) is OutputFormat.JSON:
        show_json(settings)
        return
    for name, value in settings.items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def finish(context: typer.Context, job_id: JobArgument) -> None:
    """End a job that was registered by hand; 'evenkeel run' does so itself.

    Example: evenkeel jobs finish mine
    """
    with fleet_client(context) as client:
        client.finish_job(job_id)
    say(f"job {job_id} has ended")


@app.command()
def describe(context: typer.Context, job_id: JobArgument, output: OutputOption = None) -> None:
    """Show a job: its layout, and each rank with its speed.

    Example: evenkeel jobs describe demo
    """
    with fleet_client(context) as client:
        job = client.job(job_id)
    if output_of(context, output) is OutputFormat.JSON:
        show_json(_whole_row(job))
        return
    show_record(job_row(job), OutputFormat.TABLE)
    show_rows(_whole_row(job)["ranks"], RANK_COLUMNS, OutputFormat.TABLE)


@app.command()
def watch(context: typer.Context, job_id: JobArgument, output: OutputOption = None) -> None:
    """Follow a job: verdicts, plans and changes of state as they happen, until it ends or Ctrl-C.

    A scheduler that starts again is waited for; what happened meanwhile is in the lists.

    Example: evenkeel jobs watch demo
    """
    as_json = output_of(context, output) is OutputFormat.JSON
    lines = WatchLines()

    def lost() -> None:
        lines.forget_job()
        say("the fleet API is away; waiting for it")

    with fleet_client(context) as client:
        for response in client.watch_job(job_id, lost=lost):
            happened = response.WhichOneof("happened")
            if as_json:
                show_json_line({"happened": happened, **_row(response)})
            elif line := lines.line(response):
                moment = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
                print(f"{moment}  {happened:7}  {line}", flush=True)


def _whole_row(job: scheduler_pb2.Job) -> dict[str, Any]:
    return {**job_row(job), "standing": standing_row(job.standing), "ranks": rank_rows(job)}


def _row(response: scheduler_pb2.WatchJobResponse) -> dict[str, Any]:
    match response.WhichOneof("happened"):
        case "job":
            return _whole_row(response.job)
        case "verdict":
            return verdict_row(response.verdict)
        case "plan":
            return plan_row(response.plan)
        case None:
            return {}
