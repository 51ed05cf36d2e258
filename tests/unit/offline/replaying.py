"""A recording played to its end."""

from pathlib import Path

from evenkeel.offline.findings import Summary
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.replay import replay


def run(path: Path, kind: RecordingFormat) -> tuple[list, Summary]:
    """What was found in a file, and the summary of it."""
    summary = Summary(file=str(path), format=kind.value)
    return list(replay(path, kind, summary, iterations_per_false_alarm=100_000.0)), summary
