"""Runs asynchronous work from synchronous code, also where the calling thread has an event loop of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_on_own_loop(work: Coroutine[Any, Any, Result], *, timeout_seconds: float) -> Result:
    """Runs ``work`` on a new loop in a thread of its own and blocks until it is done.

    Raises:
        TimeoutError: It took longer than ``timeout_seconds``.
        Exception: Whatever ``work`` raises.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    async def bounded() -> Result:
        async with asyncio.timeout(timeout_seconds):
            return await work

    def body() -> None:
        try:
            results.append(asyncio.run(bounded()))
        except BaseException as error:  # handed to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body, name="own-loop")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
