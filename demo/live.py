"""The live view: a screen that is redrawn on a terminal, plain lines elsewhere. Both show the same snapshots."""

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from evenkeel.demo.observed.run_log import PlanSeen
from evenkeel.demo.observed.snapshot import RankNow, Snapshot, plan_line, verdict_line

BAR_WIDTH = 26
NUM_EVENTS = 12
PLAIN_EVERY_SECONDS = 5.0


class View(Protocol):
    """Where the run is shown; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """Say something at once: a step begins, a phase ends."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show a newer moment."""
        ...


class _Announcer:
    """Finds what is new in a snapshot: verdicts, and plans that entered a new state."""

    def __init__(self) -> None:
        self._verdicts: set[str] = set()
        self._plans: set[tuple[str, str]] = set()

    def new_lines(self, snapshot: Snapshot) -> list[str]:
        """One line per new thing."""
        lines = []
        for verdict in snapshot.verdicts:
            if verdict.verdict_id not in self._verdicts:
                self._verdicts.add(verdict.verdict_id)
                lines.append(f"verdict  {verdict_line(verdict)}")
        return lines + [f"plan     {plan_line(plan)}" for plan in snapshot.plans if self._is_news(plan)]

    def _is_news(self, plan: PlanSeen) -> bool:
        key = (plan.plan_id, plan.state.value)
        if key in self._plans:
            return False
        self._plans.add(key)
        return True


class PlainView:
    """One line per event and one every few seconds, for pipes and CI logs."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self._next_line = 0.0
        self._announcer = _Announcer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def note(self, text: str) -> None:
        """See :class:`View`."""
        self._print(f"-------  {text}")

    def show(self, snapshot: Snapshot) -> None:
        """See :class:`View`."""
        for line in self._announcer.new_lines(snapshot):
            self._print(line)
        now = self._clock()
        if snapshot.iteration >= 0 and now >= self._next_line:
            self._next_line = now + PLAIN_EVERY_SECONDS
            speeds = " ".join("dead" if not each.true_speed else _short(each.speed) for each in snapshot.ranks)
            self._print(f"running  {figures(snapshot)} | speeds {speeds}")

    def _print(self, text: str) -> None:
        seconds = self._clock() - self._started
        self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True, highlight=False, markup=False)


class ScreenView:
    """A screen redrawn in place: figures, a bar per rank, the newest events."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._announcer = _Announcer()
        self._events: deque[str] = deque(maxlen=NUM_EVENTS)
        self._step = "starting"
        self._snapshot: Snapshot | None = None
        # Redrawn only when there is something new: the two cores belong to the job.
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """See :class:`View`."""
        self._step = text
        self._add(text)
        self._redraw()

    def show(self, snapshot: Snapshot) -> None:
        """See :class:`View`."""
        for line in self._announcer.new_lines(snapshot):
            self._add(line)
        self._snapshot = snapshot
        self._redraw()

    def _add(self, text: str) -> None:
        self._events.append(f"{self._clock() - self._started:6.1f} s  {text}")

    def _redraw(self) -> None:
        self._live.update(screen(self._snapshot, self._step, list(self._events)), refresh=True)


def screen(snapshot: Snapshot | None, step: str, events: list[str]) -> Group:
    """The whole screen of one moment."""
    head = Panel(Text(figures(snapshot) if snapshot else "…"), title=f"Evenkeel demo: {step}", title_align="left")
    ranks = Table.grid(padding=(0, 2))
    for rank in snapshot.ranks if snapshot else ():
        ranks.add_row(*_rank_row(rank))
    story = Text("\n".join(events), no_wrap=True, overflow="ellipsis")
    return Group(
        head, Panel(ranks, title="compute speed", title_align="left"), Panel(story, title="events", title_align="left")
    )


def figures(snapshot: Snapshot) -> str:
    """The job's figures in one line."""
    loss = "-" if snapshot.loss is None else f"{snapshot.loss:.4f}"
    seconds = "-" if snapshot.iteration_seconds is None else f"{snapshot.iteration_seconds:.2f} s"
    throughput = "-" if snapshot.throughput is None else f"{snapshot.throughput:.0%}"
    return (
        f"iteration {snapshot.iteration:>4} ({seconds}), epoch {snapshot.epoch}, loss {loss}, "
        f"throughput {throughput} of healthy, bound {snapshot.bound:.0%}"
    )


def _rank_row(rank: RankNow) -> tuple[Text, Text, Text]:
    name = Text(f"rank {rank.rank}.{rank.incarnation}")
    if not rank.true_speed:
        return name, Text("dead", style="bold"), Text("")
    if rank.speed is None:
        return name, Text("no work", style="dim"), Text("")
    filled = round(min(rank.speed, 1.25) * BAR_WIDTH)
    style = "bright_blue" if rank.speed > 0.9 else "yellow"
    bar = Text("█" * filled, style=style) + Text("░" * max(BAR_WIDTH - filled, 0), style="dim")
    return name, bar, Text(f"{rank.speed:.2f}  {rank.micro_batches} micro-batches")


def _short(speed: float | None) -> str:
    return "idle" if speed is None else f"{speed:.2f}"


def choose_view(console: Console) -> View:
    """A screen on a terminal, lines elsewhere."""
    return ScreenView(console) if console.is_terminal else PlainView(console)
