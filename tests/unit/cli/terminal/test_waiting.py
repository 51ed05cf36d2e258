import io
from pathlib import Path

import numpy as np
from rich.console import Console

from evenkeel.cli.terminal.waiting import Waiting
from evenkeel.offline.findings import Summary
from evenkeel.offline.formats import RecordingFormat
from evenkeel.offline.replay import replay


def test_nothing_is_drawn_where_nobody_looks_on() -> None:
    seen = io.StringIO()
    with Waiting("replaying steps.csv", console=Console(file=seen, force_terminal=False)) as waiting:
        waiting.is_at(0.5)
        with waiting.aside():
            pass
    assert seen.getvalue() == ""


def test_a_terminal_shows_what_is_done_and_is_left_clean() -> None:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=80, color_system=None)
    with Waiting("replaying steps.csv", console=console) as waiting:
        waiting.is_at(0.5)
        with waiting.aside():
            console.print("a verdict")
    assert "replaying steps.csv" in seen.getvalue()
    assert "a verdict" in seen.getvalue()
    assert seen.getvalue().endswith("\x1b[2K")


def test_a_replay_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("iteration,seconds\n" + "".join(f"{i},1.0\n" for i in range(2000)))
    told: list[float] = []
    summary = Summary(file=str(path), format="series")
    list(replay(path, RecordingFormat.SERIES, summary, iterations_per_false_alarm=1e5, on_progress=told.append))
    assert len(told) == 200
    assert told == sorted(told)
    assert np.diff(told).max() < 0.01
    assert 0.99 < told[-1] <= 1.0
