"""Threads for a server in somebody else's process: they never hold up its end."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DaemonThreads(Executor):
    """A fixed number of daemon threads.

    The standard library's pool is joined when the interpreter ends, before any exit handler runs: a call that lasts as
    long as its server would keep a training process alive for ever.

    Args:
        num_threads: How many calls run at once.
        name: What the threads are called.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._num_threads = num_threads
        self._ended = threading.Event()
        for number in range(num_threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def submit(
        self, fn: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> Future[_Result]:
        """Runs a call on one of the threads, in the order of submission.

        Raises:
            RuntimeError: It was shut down.
        """
        if self._ended.is_set():
            raise RuntimeError("cannot take calls after shutdown")
        future: Future[_Result] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; threads end with those that were taken. Never waits for them."""
        if self._ended.is_set():
            return
        self._ended.set()
        for _ in range(self._num_threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
