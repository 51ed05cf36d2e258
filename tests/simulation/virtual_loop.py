"""An event loop on which time passes only when nothing else is left to do, and processes that can be killed on it."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any


class Process:
    """What runs together and dies together: all tasks that come of one, with their timers.

    Killed it is as after SIGKILL: nothing of it runs any more, not even what would clean up. Stopped it is as after
    SIGSTOP: nothing runs until it goes on, and then all of it that has become due.

    Attributes:
        world: Whose process it is.
        alive: It was not killed.
        stopped: It runs again when it is told to go on.
    """

    def __init__(self, loop: "VirtualLoop", world: Any) -> None:
        self.world, self.alive, self.stopped = world, True, False
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)
        self._due: list[Callable[[], None]] = []
        self._countdown: tuple[int, Callable[[], None]] | None = None
        loop.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._context.copy().run(self._loop.create_task, work)

    def kill(self) -> None:
        self.alive = False

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        self.stopped, due = False, self._due
        self._due = []
        for each in due:
            self._loop.call_soon(each, context=self._context.copy())

    def after_steps(self, steps: int, do: Callable[[], None]) -> None:
        """Do something between two of its steps, so many steps from now."""
        self._countdown = steps, do

    def runs(self, again: Callable[[], None]) -> bool:
        """Whether a step may be taken now; ``again`` is called when it may be later."""
        if self.alive and not self.stopped and self._countdown is not None:
            left, do = self._countdown
            self._countdown = (left - 1, do) if left else None
            if not left:
                do()
        if not self.alive or self.stopped:
            self._due.append(again)
        return self.alive and not self.stopped


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Step:
    """One callback of a process."""

    __slots__ = ("_args", "_callback", "_process", "handle")

    def __init__(self, process: Process, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._process, self._callback, self._args = process, callback, args
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if not (self.handle is not None and self.handle.cancelled()) and self._process.runs(self):
            self._callback(*self._args)


class NothingLeftToDoError(RuntimeError):
    """Everybody waits for everybody, and no timer runs."""


class _Later:
    """What nobody cancels."""

    __slots__ = ("_do", "_loop")
    _cancelled = False

    def __init__(self, loop: "VirtualLoop", do: Callable[[], None]) -> None:
        self._loop, self._do = loop, do

    def _run(self) -> None:
        try:
            self._do()
        except Exception as error:
            self._loop.call_exception_handler({"message": "what was to be done later failed", "exception": error})


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs real coroutines on virtual seconds; threads' work is done at once.

    Attributes:
        now: Virtual seconds since the start.
        outside: Where nothing belongs to a process.
        processes: All that there were.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self._kept: set[asyncio.Task[Any]] = set()
        self.outside = contextvars.copy_context()
        self._timers: list[tuple[float, int, asyncio.TimerHandle | _Later]] = []
        self._num_timers = 0
        super().__init__()

    def _run_once(self) -> None:
        """What asyncio does between two looks at its selector: there is nothing to look at here."""
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if not timers:
                raise NothingLeftToDoError
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something that belongs to no process."""
        self._add_timer(self.now + seconds, _Later(self, do))

    def _add_timer(self, when: float, handle: asyncio.TimerHandle | _Later) -> None:
        self._num_timers += 1
        heappush(self._timers, (when, self._num_timers, handle))

    def time(self) -> float:
        return self.now

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self._kept.add(task)  # what is never collected is never cleaned up
        task.add_done_callback(self._kept.discard, context=self.outside)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None or isinstance(callback, _Step):
            return super().call_soon(callback, *args, context=context)
        step = _Step(process, callback, args)
        step.handle = super().call_soon(step, context=context)
        return step.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            handle = asyncio.TimerHandle(when, callback, args, self, context)
        else:
            step = _Step(process, callback, args)
            handle = step.handle = asyncio.TimerHandle(when, step, (), self, context)
        self._add_timer(when, handle)
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def end(self) -> None:
        """What is left of all tasks is cleaned up, also of killed processes; nobody looks any more."""
        self.set_exception_handler(lambda *_: None)
        for process in self.processes:
            process.alive = True
            process.after_steps(-1, lambda: None)
            process.go_on()
        for _ in range(20):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.run_until_complete(asyncio.sleep(0))
