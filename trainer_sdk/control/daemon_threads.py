"""Threads for a server in somebody else's process: they never hold up its end."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class DaemonThreads(Executor):
    """A fixed number of daemon threads, for a gRPC server, which cancels no call that it has submitted.

    The standard library's pool is joined when the interpreter ends, before any exit handler runs: a call that lasts as
    long as its server would keep a training process alive for ever.

    Args:
        num_threads: How many calls run at once.
        name: What the threads are called.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._num_threads = num_threads
        for number in range(num_threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Runs a call on one of the threads, in the order of submission; none that comes after :meth:`shutdown`."""
        future: Future[_Result] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Threads end with the calls that were taken; once, and never waits for them."""
        for _ in range(self._num_threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
