"""What whoever waits for a long command sees: a bar on standard error, only where that is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Waiting:
    """A bar that runs from side to side until it is told how far things are; gone when the command ends.

    Args:
        description: What is done.
        console: Where to; standard error when None.
    """

    def __init__(self, description: str, *, console: Console | None = None) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        console = console or Console(stderr=True)
        # Results go to standard output, wherever that leads: the bar must not catch them.
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(description, total=None)

    def is_at(self, share: float) -> None:
        """Shows that this share of the work is done, 0 to 1."""
        self._progress.update(self._task, total=1.0, completed=min(max(share, 0.0), 1.0))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Takes the bar off the terminal while something is printed."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
