import io
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from evenkeel.demo.live import PlainView, ScreenView, choose_view
from evenkeel.demo.observed.snapshot import Snapshot, SnapshotMaker
from evenkeel.demo.observed.truths import TruthKind
from tests.unit.demo.synthetic_run import LAYOUT, MODEL, Run, whole_run


def ticking(step_seconds: float) -> Callable[[], float]:
    ticks: Iterator[int] = iter(range(10_000))
    return lambda: next(ticks) * step_seconds


def snapshot_of(run: Run) -> Snapshot:
    return SnapshotMaker(run.log, MODEL, LAYOUT).make(run.now, run.truths)


def test_a_snapshot_shows_the_slow_rank_and_the_bound() -> None:
    snapshot = snapshot_of(whole_run())
    assert snapshot.bound == pytest.approx((7 + 0.6) / 8)
    assert snapshot.ranks[0].speed == pytest.approx(0.6, rel=0.05)
    assert snapshot.ranks[1].speed == pytest.approx(1.0, rel=0.05)
    assert snapshot.throughput == pytest.approx(0.92, rel=0.05)


def test_a_dead_rank_has_no_speed() -> None:
    run = Run()
    run.train(12)
    run.truth(TruthKind.FAIL_STOP, 6, 0.0)
    run.train(3)
    assert snapshot_of(run).ranks[6].speed is None
    assert snapshot_of(run).bound == 7 / 8


def test_before_the_first_iteration_there_is_nothing_to_show_and_nothing_breaks() -> None:
    snapshot = snapshot_of(Run())
    assert (snapshot.iteration, snapshot.loss, snapshot.throughput) == (-1, None, None)


def test_without_a_terminal_each_event_is_one_line_and_told_once() -> None:
    text = io.StringIO()
    view = choose_view(Console(file=text, width=200))
    assert isinstance(view, PlainView)
    snapshot = snapshot_of(whole_run())
    with view:
        view.show(snapshot)
        view.show(snapshot)
    lines = text.getvalue().splitlines()
    assert sum("compute slow: rank 3" in line for line in lines) == 1
    assert sum("epoch 3 measured" in line for line in lines) == 1


def test_without_a_terminal_figures_come_every_five_seconds() -> None:
    text = io.StringIO()
    view = PlainView(Console(file=text, width=200), clock=ticking(1.0))
    snapshot = snapshot_of(whole_run())
    for _ in range(20):
        view.show(snapshot)
    assert 3 <= sum("running" in line for line in text.getvalue().splitlines()) <= 8


def test_on_a_terminal_the_screen_shows_ranks_and_events() -> None:
    text = io.StringIO()
    view = choose_view(Console(file=text, force_terminal=True, width=110, height=60))
    assert isinstance(view, ScreenView)
    with view:
        view.note("kill -9 of rank 6")
        view.show(snapshot_of(whole_run()))
    shown = text.getvalue()
    assert "rank 6.1" in shown
    assert "kill -9 of rank 6" in shown
    assert "bound 95%" in shown
