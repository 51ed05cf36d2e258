"""Entry point of ``evenkeel``."""

import importlib
import logging
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from cli.errors import CommandError, ExitStatus
from cli.output import OutputFormat, say
from cli.session import DEFAULT_STACK, Session
from stack.errors import ServerAwayError, StackError

GROUPS = ("stack", "jobs", "incidents", "verdicts", "plans", "topics", "db", "inject")
COMMANDS = {
    "analyze": "cli.analyze:analyze_recording",
    "record": "cli.record:record_job",
    "replay": "cli.replay:replay_recording",
    "demo": "cli.demo:demo",
    "plan": "cli.plan:plan",
    "simulate": "cli.simulate:simulate",
    "run": "cli.run:run",
    "doctor": "cli.doctor:doctor",
    "schedule": "cli.schedule:schedule",
    "why": "cli.why:why",
}
# These take arguments that are somebody else's: the launcher's, and whatever a missing package's command has.
FOREIGN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="evenkeel",
    help="Keeps large-model training fast and alive while hardware fails.",
    epilog="First steps: evenkeel doctor, then evenkeel demo.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _missing(package: str) -> Callable[[], None]:
    """Stands in for a command that cannot be loaded here, as in a trainer's image, which holds the SDK only."""

    def command() -> None:
        raise CommandError(
            f"this command needs the package {package}, which is not installed",
            next_step="make setup in a checkout, or: pip install 'evenkeel[services]'",
            status=ExitStatus.UNHEALTHY,
        )

    command.__doc__ = f"Not available here: needs the package {package}."
    return command


def _add_group(name: str) -> None:
    try:
        app.add_typer(importlib.import_module(f"cli.{name}").app, name=name)
    except ModuleNotFoundError as error:
        app.command(name, context_settings=FOREIGN_ARGUMENTS)(_missing(error.name or "?"))


def _add_command(name: str, place: str) -> None:
    module, _, function = place.partition(":")
    settings: dict[str, Any] | None = FOREIGN_ARGUMENTS if name == "run" else None
    try:
        app.command(name, context_settings=settings)(getattr(importlib.import_module(module), function))
    except ModuleNotFoundError as error:
        app.command(name, context_settings=FOREIGN_ARGUMENTS)(_missing(error.name or "?"))


for _name in GROUPS:
    _add_group(_name)
for _name, _place in COMMANDS.items():
    _add_command(_name, _place)


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
    """Runs the command line; the exit status is one of :class:`cli.errors.ExitStatus`, or 130 after Ctrl-C."""
    # What went wrong is told in one line of ours; the client would say it before that in its own words.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        app()
    except CommandError as error:
        say(f"evenkeel: {error}")
        if error.next_step:
            say(f"next: {error.next_step}")
        sys.exit(error.status)
    except StackError as error:
        say(f"evenkeel: {error}")
        sys.exit(ExitStatus.UNHEALTHY if isinstance(error, ServerAwayError) else ExitStatus.FAILURE)
    sys.exit(ExitStatus.OK)


if __name__ == "__main__":
    main()
