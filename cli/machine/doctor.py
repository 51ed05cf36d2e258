"""``evenkeel doctor``: what this machine lacks, and how to get it."""

from dataclasses import asdict

import typer

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.machine.checks import Outcome, all_checks
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, show_json, show_rows


def doctor(context: typer.Context, output: OutputOption = None) -> None:
    """Say what this machine lacks to run Evenkeel, and how to get it. Exit status 3 when something is missing.

    Example: evenkeel doctor
    """
    checks = list(all_checks())
    if output_of(context, output) is OutputFormat.JSON:
        show_json([asdict(check) for check in checks])
    else:
        show_rows(
            [asdict(check) for check in checks], {"name": "CHECK", "outcome": "", "found": "FOUND"}, OutputFormat.TABLE
        )
        for check in checks:
            if check.advice:
                print(f"{check.name} ({check.outcome}): {check.advice}")
    if any(check.outcome is Outcome.MISSING for check in checks):
        raise typer.Exit(ExitStatus.UNHEALTHY)
