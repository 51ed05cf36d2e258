"""Files that a command reads: ``-`` is what comes through standard input."""

from pathlib import Path

STANDARD_INPUT = Path("/dev/stdin")


def readable(path: Path) -> Path:
    """The file to read for an argument."""
    return STANDARD_INPUT if path == Path("-") else path
