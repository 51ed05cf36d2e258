"""A note that a failing process leaves in the run's folder, for the launcher that sees it end."""

import contextlib
import json
from pathlib import Path

from evenkeel.trainer_sdk.control.fleet.last_words import LastWords


def leave(words: LastWords, run_dir: Path, rank: int, incarnation: int) -> None:
    """Leave a note; one that cannot be written is none, and the process's output has it too."""
    with contextlib.suppress(OSError):
        _path(run_dir, rank, incarnation).write_text(json.dumps({"line": words.line, "lost_peer": words.lost_peer}))


def take(run_dir: Path, rank: int, incarnation: int) -> LastWords | None:
    """The note of a process that has ended, which is gone then; None without one."""
    path = _path(run_dir, rank, incarnation)
    try:
        document = json.loads(path.read_text())
        path.unlink()
        return LastWords(line=str(document["line"]), lost_peer=bool(document["lost_peer"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(run_dir: Path, rank: int, incarnation: int) -> Path:
    return run_dir / f"last-words-{rank}-{incarnation}.json"
