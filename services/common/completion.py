"""Work that a caller may stop waiting for, but not stop: what it does to a service's state is done wholly or not yet.

A gRPC call that runs out of time, or whose client went away, is cancelled wherever it waits at that moment.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TASK_NAME = "completed"
"""Name of the tasks: they outlive whoever began them."""

# The event loop itself holds its tasks weakly.
_working: set[asyncio.Task[Any]] = set()


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns or raises; a caller that is cancelled leaves it behind, and it goes on to its end."""
    task = asyncio.create_task(work, name=TASK_NAME)
    _working.add(task)
    task.add_done_callback(_working.discard)
    return await asyncio.shield(task)
