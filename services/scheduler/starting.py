"""A job whose processes never come: after a while that is said of it, instead of that it runs."""

import asyncio

from evenkeel.services.scheduler.job_actor import JobActor
from evenkeel.services.scheduler.parts import Parts


class Starting:
    """Looks after the start of one job's processes. Belongs to the event loop's thread."""

    def __init__(self, parts: Parts) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            parts: What all jobs share; tasks are the job's own.
        """
        self._parts = parts

    def attend(self, actor: JobActor) -> None:
        """Whose start this is; call it once."""
        self._parts.spawn(self._wait(actor))

    async def _wait(self, actor: JobActor) -> None:
        deadline_seconds = self._parts.start_deadline_seconds
        left_seconds = actor.job.registered_at.timestamp() + deadline_seconds - self._parts.clock()
        await asyncio.sleep(max(0.0, left_seconds))
        await actor.give_up_waiting(deadline_seconds)
