"""Entry point of ``evenkeel``."""

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    import errno
    import importlib
    import logging
    import os
    import sys
    from importlib.metadata import version
    from typing import Annotated, Any, NoReturn

    import typer
    import typer.core
    import typer.main

    from evenkeel.cli.errors import CommandError, ExitStatus
    from evenkeel.cli.session import DEFAULT_STACK, Session
    from evenkeel.cli.terminal.output import OutputFormat, say
    from evenkeel.stack.errors import ServerAwayError, StackError, StackNameError

# Where each command is, and its line in the list: nothing of it is loaded before it is called.
COMMANDS = {
    "doctor": ("evenkeel.cli.machine.doctor:doctor", "Say what this machine lacks to run Evenkeel, and how to get it."),
    "demo": (
        "evenkeel.cli.machine.demo:demo",
        "Run the main job through its failures on a stack of its own, and write a report.",
    ),
    "stack": ("evenkeel.cli.machine.stack:app", "The local Kafka, PostgreSQL and services."),
    "run": (
        "evenkeel.cli.machine.run:run",
        "Run a training job: one process for each rank, started again when one dies.",
    ),
    "launch": (
        "evenkeel.cli.machine.run:launch",
        "Run a script as replicas, some on each host; one that dies is replaced.",
    ),
    "inject": ("evenkeel.cli.machine.inject:app", "Faults into a job that runs on this machine."),
    "jobs": ("evenkeel.cli.fleet.jobs:app", "What the fleet trains."),
    "incidents": ("evenkeel.cli.fleet.incidents:app", "Failures, from first verdict to resolution."),
    "verdicts": ("evenkeel.cli.fleet.verdicts:app", "What the detector found, with its evidence."),
    "plans": ("evenkeel.cli.fleet.plans:app", "What was done about failures, and why."),
    "why": (
        "evenkeel.cli.recorded.why:why",
        "Say what explains a job's slowdown now: rank, stage, operation or sequences.",
    ),
    "record": ("evenkeel.cli.recorded.record:record_job", "Write what Kafka still holds of a job into a file."),
    "replay": ("evenkeel.cli.recorded.replay:replay_recording", "Run the detector over a recorded job."),
    "analyze": ("evenkeel.cli.recorded.analyze:analyze_recording", "Say what made a recorded job slow."),
    "plan": ("evenkeel.cli.what_if.plan:plan", "Say what would be done in a state that a file describes, and why."),
    "schedule": (
        "evenkeel.cli.what_if.schedule:schedule",
        "Find the partition, placement and F/B/W order of a pipeline.",
    ),
    "simulate": ("evenkeel.cli.what_if.simulate:simulate", "Simulate a failing fleet and compare ways to train on it."),
    "topics": ("evenkeel.cli.machine.topics:app", "The Kafka topics."),
    "db": ("evenkeel.cli.machine.db:app", "The history's database."),
}


class LazyCommands(typer.core.TyperGroup):
    """Commands that are loaded when they are called: 'evenkeel jobs list' does not wait for the planner's libraries."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """The command that the arguments begin with, its name, and the rest of them."""
        name, heading, rest = super().resolve_command(context, arguments)
        with ending_on_interrupt():
            return name, load_command(name) if name in COMMANDS else heading, rest


def load_command(name: str) -> Any:
    """One of :data:`COMMANDS`, with all that it needs.

    Raises:
        CommandError: A package is missing, as in a trainer's image, which holds the SDK only.
    """
    module, _, attribute = COMMANDS[name][0].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this command needs the package {error.name}, which is not installed",
            next_step="make setup in a checkout, or: pip install 'evenkeel[services]'",
            status=ExitStatus.UNHEALTHY,
        ) from error
    parent = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    parent.callback()(_nothing)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        # What stands behind "run" and "launch" is the launcher's, its --help too.
        parent.command(name, context_settings=_LAUNCHER_ARGUMENTS if name in ("run", "launch") else None)(found)
    return typer.main.get_group(parent).commands[name]


_LAUNCHER_ARGUMENTS: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}

app = typer.Typer(
    name="evenkeel",
    cls=LazyCommands,
    help="Keeps large-model training fast and alive while hardware fails.",
    epilog="First steps: evenkeel doctor, then evenkeel demo.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Paragraphs of a help text are filled to the terminal's width.
    rich_markup_mode="markdown",
)


def _nothing() -> None:
    pass


for _name, (_place, _line) in COMMANDS.items():
    app.command(_name, help=_line)(_nothing)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"evenkeel {version('evenkeel')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="How to show data.")] = OutputFormat.TABLE,
    stack_name: Annotated[
        str, typer.Option("--stack", help="Local stack to ask for addresses that are not set.")
    ] = DEFAULT_STACK,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Keeps large-model training fast and alive while hardware fails."""
    context.obj = Session(output=output, stack_name=stack_name)


def main() -> NoReturn:
    """Runs the command line; the exit status is one of :class:`evenkeel.cli.errors.ExitStatus`, or 130 after Ctrl-C."""
    # What went wrong is told in one line of ours; the client would say it before that in its own words.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        with ending_on_interrupt():
            command = typer.main.get_command(app)
        command()
    except CommandError as error:
        say(f"evenkeel: {error}")
        if error.next_step:
            say(f"next: {error.next_step}")
        sys.exit(error.status)
    except StackError as error:
        say(f"evenkeel: {error}")
        statuses = {StackNameError: ExitStatus.USAGE, ServerAwayError: ExitStatus.UNHEALTHY}
        sys.exit(statuses.get(type(error), ExitStatus.FAILURE))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What could not be written would be tried again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"evenkeel: cannot write: {error.strerror}")
        sys.exit(ExitStatus.FAILURE)
    sys.exit(ExitStatus.OK)


if __name__ == "__main__":
    main()
