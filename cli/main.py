"""Entry point of ``evenkeel``."""

import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from cli import db, incidents, inject, jobs, plans, stack, topics
from cli.analyze import analyze_recording
from cli.demo import demo
from cli.doctor import doctor
from cli.errors import CommandError, ExitStatus
from cli.output import OutputFormat, say
from cli.record import record_job
from cli.replay import replay_recording
from cli.run import run
from cli.schedule import schedule
from cli.session import DEFAULT_STACK, Session
from cli.simulate import simulate
from stack.errors import StackError

app = typer.Typer(
    name="evenkeel",
    help="Keeps large-model training fast and alive while hardware fails.",
    epilog="First steps: evenkeel doctor, then evenkeel demo.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for noun in (stack, jobs, incidents, plans, topics, db, inject):
    app.add_typer(noun.app, name=noun.__name__.rpartition(".")[2])
app.command("analyze")(analyze_recording)
app.command("record")(record_job)
app.command("replay")(replay_recording)
app.command()(demo)
app.command()(simulate)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(run)
app.command()(doctor)
app.command()(schedule)


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
    try:
        app()
    except CommandError as error:
        say(f"evenkeel: {error}")
        if error.next_step:
            say(f"next: {error.next_step}")
        sys.exit(error.status)
    except StackError as error:
        say(f"evenkeel: {error}")
        sys.exit(ExitStatus.FAILURE)
    sys.exit(ExitStatus.OK)


if __name__ == "__main__":
    main()
