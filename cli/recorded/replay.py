"""``evenkeel replay``: the detector, run over a recording."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenkeel.cli.documents import readable
from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_json_line
from evenkeel.cli.terminal.waiting import Waiting
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.iterations.clocks import ClockChoice

if TYPE_CHECKING:
    from evenkeel.offline.findings import Summary


def replay_recording(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The recording; - for standard input.")],
    kind: Annotated[RecordingFormat, typer.Option("--format", help="What the file holds.")],
    budget: Annotated[
        float,
        typer.Option(
            "--iterations-per-false-alarm", min=10, metavar="N", help="Healthy iterations per false alarm of a job."
        ),
    ] = 100_000.0,
    clocks: Annotated[
        ClockChoice,
        typer.Option("--clocks", help="Of iterations: all clocks that the file has, or compute by the wall alone."),
    ] = ClockChoice.ALL,
    output: OutputOption = None,
) -> None:
    """Run the detector over a recorded job: verdicts as JSON lines, and a summary.

    The summary goes to standard error; with -o json it is the last line of standard output instead. Messages that
    cannot be used are skipped, as the services skip them, and the summary says how many and why.

    Example: evenkeel replay steps.csv --format series
    """
    # Loading the detector takes a second: only this command pays for it.
    from evenkeel.offline.findings import Summary, verdict_row  # noqa: PLC0415
    from evenkeel.offline.replay import replay  # noqa: PLC0415

    file = readable(file)
    summary = Summary(file=str(file), format=kind.value)
    try:
        with Waiting(f"replaying {file.name}") as waiting:
            found = replay(
                file, kind, summary, iterations_per_false_alarm=budget, clocks=clocks, on_progress=waiting.is_at
            )
            for verdict in found:
                with waiting.aside():
                    show_json_line(verdict_row(verdict))
    except RecordingError as error:
        raise CommandError(
            str(error), next_step="docs/offline.md describes the formats", status=ExitStatus.USAGE
        ) from error
    if output_of(context, output) is OutputFormat.JSON:
        show_json_line({"summary": summary.to_plain()})
        return
    say(_text(summary))


def _text(summary: "Summary") -> str:
    verdicts = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.verdicts.items())) or "no verdicts"
    jobs = f"{len(summary.jobs)} job{'s' * (len(summary.jobs) != 1)}"
    iterations = f"{summary.num_iterations} iterations ({summary.num_planned} with planned pauses)"
    lines = [f"{summary.file}: {iterations} of {jobs}: {verdicts}"]
    accused = [f"{job} ranks {', '.join(map(str, ranks))}" for job, ranks in summary.accused_ranks.items() if ranks]
    if accused:
        lines.append("accused: " + "; ".join(accused))
    if summary.still_slow:
        lines.append("slow at the end: " + ", ".join(summary.still_slow))
    if summary.skipped.count:
        lines.append(summary.skipped.text)
    return "\n".join(lines + [f"note: {note}" for note in summary.notes])
