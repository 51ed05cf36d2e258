"""Which phase a training thread is in: it computes, waits for others, or does neither."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind, Device
from evenkeel.trainer_sdk.devices.process_usage import ProcessUsage, Usage
from evenkeel.trainer_sdk.devices.wall_clock import WallClock
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.watch.guard import Guard

T = TypeVar("T")

_IN_ITERATION, _BETWEEN_ITERATIONS = "iteration", "between iterations"
_SEGMENTS = (ComputeKind.FORWARD, ComputeKind.BACKWARD, ComputeKind.OPTIMIZER, ComputeKind.DATA)


class Phased(NamedTuple):
    """One iteration by the clocks.

    Attributes:
        began_at_unix_seconds: When it began.
        began_seconds: The same on the clock of the phases.
        wall_seconds: From its beginning to its end.
        computed: What the device measured.
        waited_seconds: Wall time of the thread in waits, by what for; so nothing where a GPU waits.
        usage: What the process used since the iteration before ended.
    """

    began_at_unix_seconds: float
    began_seconds: float
    wall_seconds: float
    computed: Computed
    waited_seconds: dict[str, float]
    usage: Usage


class Phases:
    """The phase in force; a new one ends the one before. Outside of an iteration nothing is measured.

    Used by the training thread, and by a thread of autograd while the training thread waits for it. One moment serves
    device, waits and progress mark wherever they meet.

    Args:
        device: Measures compute, and where it is emulated paces it.
        progress: Told of every phase: a rank that hangs in one of its own is told from those that wait for it.
        clock: Monotonic seconds, of waits and marks: ``time.perf_counter``, or what a test puts in its place.
        in_none: What the mark says of a thread in no phase; empty: ``iteration``, or ``between iterations``.

    Attributes:
        guard: Keeps what goes wrong here, and in hooks that call this, out of the loop.
        segments: A context around one phase of compute, by its kind.
    """

    def __init__(
        self,
        device: Device,
        progress: ProgressMark,
        clock: Callable[[], float] = time.perf_counter,
        *,
        in_none: str = "",
    ) -> None:
        self.guard = Guard()
        self.segments = {kind: Segment(partial(self.compute, kind), self) for kind in _SEGMENTS}
        self._device = device
        self._progress = progress
        self._clock = clock
        self._wall_clock = WallClock(monotonic=clock)
        self._usage = ProcessUsage()
        self._active = False
        self._began = 0.0, 0.0
        self._in_none = in_none
        self._between = in_none or _BETWEEN_ITERATIONS
        self._computing: ComputeKind | None = None
        self._flops = 0.0
        self._waiting: tuple[str, float] | None = None
        self._waited: dict[str, float] = {}

    def begin_iteration(self, iteration: int, *, epoch: int = 0, mark: str = "") -> None:
        """Later phases belong to this iteration.

        Args:
            iteration: Its number.
            epoch: In which it runs.
            mark: What was planned for it, if anything: the operation of a rank that is in no phase.
        """
        self._progress.begin_iteration(iteration, epoch)
        self._between = mark or self._in_none or _IN_ITERATION
        self._began = self._wall_clock.read()
        self._progress.newest = self._between, (), self._began[1], self._progress.where
        self._active = True

    def pause(self, mark: str) -> None:
        """Between iterations: something planned begins, in which this rank may stay for long; empty: it is over."""
        self._progress.enter(mark or _BETWEEN_ITERATIONS)

    def compute(self, kind: ComputeKind) -> None:
        """From here on this device computes, and waits for nobody."""
        if self._active:
            try:
                if self._computing is not None:
                    self._leave()
                now = self._device.begin(kind)
                self._end_wait(now)
                self._progress.newest = kind, (), now, self._progress.where
                self._computing = kind
            except Exception as error:
                self.guard.note("a compute phase", error)

    def add(self, flops: float) -> None:
        """The compute phase in force did, or is about to do, this many operations."""
        self._flops += flops

    def wait(self, what: str, waiting_for: tuple[int, ...] = ()) -> None:
        """From here on others are waited for.

        Args:
            what: For example ``gradient``.
            waiting_for: Their ranks, where known.
        """
        if self._active:
            try:
                now = self._leave()
                self._waiting = what, now
                self._progress.newest = f"wait:{what}", waiting_for, now, self._progress.where
            except Exception as error:
                self.guard.note("a wait", error)

    def waits(self, what: str, waiting_for: tuple[int, ...], run: Callable[[], T]) -> T:
        """Run what waits for others, then go on with the phase that was in force; returns its result."""
        before = self._computing
        self.wait(what, waiting_for)
        result = run()
        if before is None:
            self.rest()
        else:
            self.compute(before)
        return result

    def rest(self) -> None:
        """The phase in force is over."""
        if self._active:
            try:
                self._progress.newest = self._between, (), self._leave(), self._progress.where
            except Exception as error:
                self.guard.note("the end of a phase", error)

    def give_up(self) -> None:
        """The phase in force was broken off: it counts for nothing."""
        self._computing, self._flops, self._waiting = None, 0.0, None

    def end_iteration(self) -> Phased:
        """What was measured of it."""
        now = self._leave()
        self._between = self._in_none or _BETWEEN_ITERATIONS
        self._progress.newest = self._between, (), now, self._progress.where
        self._active = False
        waited, self._waited = self._waited, {}
        return Phased(*self._began, now - self._began[1], self._device.take(), waited, self._usage.take())

    def _leave(self) -> float:
        """The phase in force, if there is one, is over now; returns when that is."""
        computing = self._computing
        if computing is not None:
            flops, self._computing, self._flops = self._flops, None, 0.0
            return self._device.end(flops, computing)
        now = self._clock()
        self._end_wait(now)
        return now

    def _end_wait(self, now: float) -> None:
        if self._waiting is not None:
            (what, since), self._waiting = self._waiting, None
            self._waited[what] = self._waited.get(what, 0.0) + now - since


class Segment:
    """A context around one phase; the same object may serve every iteration, one segment at a time.

    Args:
        begin: Switches to the phase.
        phases: Whose it is.
    """

    __slots__ = ("_begin", "_phases")

    def __init__(self, begin: Callable[[], None], phases: Phases) -> None:
        self._begin = begin
        self._phases = phases

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._phases.rest()
        else:
            self._phases.give_up()
