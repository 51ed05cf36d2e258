"""``evenkeel analyze``: what explains a recorded job's slowdown."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from evenkeel.attribution import Attribution, OperationError, analyze
from evenkeel.attribution.recording.whole_steps import whole_steps
from evenkeel.cli.documents import readable
from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_json, show_record, show_rows
from evenkeel.cli.terminal.waiting import Waiting
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.operations.file import read_operations

_COLUMNS = {"what": "WHAT", "name": "NAME", "slowdown": "SLOWDOWN IF ALONE", "share": "SHARE OF SLOWDOWN"}
_MOST_RANKS_SHOWN = 8
_MOST_LINKS_SHOWN = 4


class AnalyzeFormat(StrEnum):
    """Formats that can be analysed."""

    OPS = "ops"


def analyze_recording(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet or CSV; - for standard input.")],
    _format: Annotated[AnalyzeFormat, typer.Option("--format", help="What the file holds.")] = AnalyzeFormat.OPS,
    output: OutputOption = None,
) -> None:
    """Say how much slower than ideal a recorded job was, and which rank, stage, operation or sequences explain it.

    Example: evenkeel analyze trace.parquet --format ops
    """
    file = readable(file)
    try:
        with Waiting(f"analysing {file.name}"):
            recorded = read_operations(file)
            whole = whole_steps(recorded.operations)
            found = analyze(whole.operations)
    except (OperationError, RecordingError) as error:
        raise CommandError(
            f"{file}: {error}" if isinstance(error, OperationError) else str(error),
            next_step="docs/offline.md describes the columns",
            status=ExitStatus.USAGE,
        ) from error
    notes = [*recorded.notes]
    if whole.num_left_out:
        num_steps = whole.num_left_out + len(found.per_step)
        notes.append(f"{whole.num_left_out} of {num_steps} steps left out, operations are missing: {whole.problem}")
    if found.in_turn:
        notes.append("the recording shows that workers waited for each transfer in its turn: replayed so")
    if output_of(context, output) is OutputFormat.JSON:
        show_json({**found.to_plain(), "notes": notes})
        return
    for note in notes:
        say(f"note: {note}")
    show_record(_summary(found), OutputFormat.TABLE)
    show_rows(_rows(found), _COLUMNS, OutputFormat.TABLE)


def _summary(found: Attribution) -> dict[str, object]:
    correlation = found.sequence_correlation
    return {
        "workers": found.num_workers,
        "steps": len(found.per_step),
        "observed_seconds_per_step": found.observed_seconds,
        "replayed_seconds_per_step": found.replayed_seconds,
        "ideal_seconds_per_step": found.ideal_seconds,
        "slowdown": f"{found.slowdown:.4f} ({100 * found.waste:.1f} % of the devices' time lost)",
        "slowest_workers_explain": f"{100 * found.worker_share:.1f} %, ranks {_listed(found.slowest_workers)}",
        "last_stage_explains": f"{100 * found.last_stage_share:.1f} %",
        "sequences_explain": f"{100 * found.sequence_share:.1f} %"
        + ("" if correlation is None else f", forward against backward {correlation:.2f}"),
        "causes": ", ".join(found.causes) or ("none" if found.slowdown >= 1.1 else "none: the job does not straggle"),
        "ill_ranks": _listed(found.ill_ranks) or "none",
        "heavy_stages": _listed(found.heavy_stages) or "none",
        "slow_links": _listed(found.slow_links) or "none",
    }


def _listed(names: tuple[object, ...]) -> str:
    return ", ".join(map(str, names))


def _rows(found: Attribution) -> list[dict[str, object]]:
    groups = (
        ("stage", found.by_stage),
        ("dp rank", found.by_dp_rank[:_MOST_RANKS_SHOWN]),
        ("operation", found.by_operation),
        ("rank", found.by_rank[:_MOST_RANKS_SHOWN]),
        ("link", found.by_link[:_MOST_LINKS_SHOWN]),
    )
    return [
        {"what": what, "name": each.name, "slowdown": f"{each.slowdown:.4f}", "share": f"{100 * each.share:.1f} %"}
        for what, suspects in groups
        for each in suspects
    ]
