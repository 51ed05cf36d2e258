"""``evenkeel stack``: the local Kafka, PostgreSQL and services."""

import importlib
import shlex
import subprocess
import sys
from typing import Annotated, Any

import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import OutputOption, output_of, session_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_json, show_rows
from evenkeel.stack.background import running_stack, start_in_background, stop_in_background
from evenkeel.stack.paths import stack_folder, stack_names
from evenkeel.stack.processes.pids import start_mark
from evenkeel.stack.processes.ports import LOOPBACK
from evenkeel.stack.services import fleet_address_of, health_problem
from evenkeel.stack.state import Phase, StackState, read_state

app = typer.Typer(help="The local Kafka, PostgreSQL and services.", no_args_is_help=True)

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name", help="Name of the stack; several may run side by side.", show_default="that of evenkeel --stack"
    ),
]
COLUMNS = {
    "stack": "STACK",
    "part": "PART",
    "state": "STATE",
    "address": "ADDRESS",
    "metrics": "METRICS",
    "pid": "PID",
    "restarts": "RESTARTS",
}


@app.command()
def up(
    context: typer.Context,
    name: NameOption = None,
    servers: Annotated[bool, typer.Option("--servers", help="Only Kafka and PostgreSQL, no services.")] = False,
    instances: Annotated[
        int, typer.Option("--instances", min=1, max=9, help="Processes of each service; the others take over at once.")
    ] = 2,
    output: OutputOption = None,
) -> None:
    """Start the stack in the background, migrated and with its topics, and say how to reach it.

    One that runs already is left as it is, and the same is said of it.

    Example: eval "$(evenkeel stack up)"
    """
    name = session_of(context).stack_name if name is None else name
    running = running_stack(name, with_services=not servers)
    if running is None and not servers:
        say("loading the planner (the first time it is compiled: a minute)")
        # Beside a job on few cores it would take several, and nobody be taken back in meanwhile.
        subprocess.run([sys.executable, "-m", "evenkeel.planning.warm_up"], stdout=subprocess.DEVNULL, check=False)
    state = running or start_in_background(name, num_instances=0 if servers else instances, say=say)
    settings = state.addresses.environment()
    if output_of(context, output) is OutputFormat.JSON:
        show_json({"name": name, "environment": settings})
        return
    say(f"The stack {name!r} runs{' already' if running else ''}; stop it with: evenkeel stack down --name {name}")
    for key, value in settings.items():
        print(f"export {key}={shlex.quote(value)}")


@app.command()
def down(context: typer.Context, name: NameOption = None) -> None:
    """Stop the stack; its data stays for the next start.

    Example: evenkeel stack down
    """
    name = session_of(context).stack_name if name is None else name
    stopped = stop_in_background(name)
    say(f"The stack {name!r} is stopped." if stopped else f"The stack {name!r} does not run.")


@app.command()
def status(
    context: typer.Context,
    name: Annotated[str | None, typer.Option("--name", help="Only this stack.")] = None,
    output: OutputOption = None,
) -> None:
    """Show what runs. Exit status 3 when a stack does not run or a part of one is not well.

    Example: evenkeel stack status
    """
    states = [state for state in map(read_state, [name] if name else stack_names()) if state is not None]
    if not states:
        raise CommandError(
            f"the stack {name!r} does not run" if name else "no stack runs",
            next_step=f"evenkeel stack up --name {name}" if name else "evenkeel stack up",
            status=ExitStatus.UNHEALTHY,
        )
    rows = [row for state in states for row in _rows(state)]
    show_rows(rows, COLUMNS, output_of(context, output))
    for state in states:
        if state.error:
            say(f"{state.name}: {state.error}")
    for row in rows:
        if row.get("problem"):
            say(f"{row['stack']} {row['part']}: {row['problem']}")
    if any(row["state"] not in ("running", "healthy") for row in rows):
        raise typer.Exit(ExitStatus.UNHEALTHY)


def _answers(server: str, address: str) -> bool:
    """Whether that server answers its clients: one that is frozen has a process that runs, and takes connections."""
    # Late: other commands on the stack do not wait for the clients to be loaded.
    module = importlib.import_module(
        {"kafka": "evenkeel.stack.kafka.node", "postgres": "evenkeel.stack.postgres.server"}[server]
    )
    return bool(module.answers(address))


def _rows(state: StackState) -> list[dict[str, Any]]:
    """One row for the stack and one for each of its processes."""
    rows: list[dict[str, Any]] = [
        {"stack": state.name, "part": "owner", "state": state.phase.value, "pid": state.owner_id}
    ]
    servers = {"kafka": state.addresses.kafka_bootstrap_servers, "postgres": state.addresses.database_url}
    for part, process in state.processes.items():
        problem = ""
        alive = state.phase is not Phase.FAILED and start_mark(process.process_id) == process.mark
        condition = "running" if alive else "dead"
        port, is_scheduler = state.addresses.metrics_ports.get(part), part.partition("-")[0] == "scheduler"
        if alive and port is not None:
            problem = health_problem(port)
            condition = "unhealthy" if problem else "healthy"
        elif alive and servers.get(part) and not _answers(part, servers[part]):
            problem, condition = "does not answer, or lets nobody in", "unhealthy"
        if condition in ("dead", "unhealthy") and part in servers:
            # Why it ended, as on a full disk, is said there only.
            problem = f"{problem or 'has ended'}; its log is {stack_folder(state.name) / part / part}.log"
        rows.append(
            {
                "stack": state.name,
                "part": part,
                "state": condition,
                "address": fleet_address_of(part, state.addresses)
                if is_scheduler
                # Without user and password: this is for the eye.
                else servers.get(part, "").rpartition("@")[2],
                "metrics": "" if port is None else f"{LOOPBACK}:{port}",
                "pid": process.process_id,
                "restarts": process.restarts,
                "problem": problem,
            }
        )
    return rows
