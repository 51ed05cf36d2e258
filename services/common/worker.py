"""One thread beside the event loop, for work that would hold up heartbeats, health answers and other coroutines."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Runs plain functions one after the other on a thread of its own.

    Whoever awaits one is alone with the state that it works on: what belongs to the loop's thread must not touch that
    state meanwhile, which the consume loop sees to for its handler.
    """

    def __init__(self, name: str = "work") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result; what it raises is raised here. Called on the loop's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def stop(self) -> None:
        """Take nothing more; does not wait for what is being worked on."""
        self._executor.shutdown(wait=False, cancel_futures=True)
