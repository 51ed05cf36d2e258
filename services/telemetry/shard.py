"""The jobs of one input partition, and its time."""

import time

from evenkeel.services.telemetry.adapters.recovery import PartitionMemory
from evenkeel.services.telemetry.domain.job_stream import RETURN_SECONDS, JobStream
from evenkeel.services.telemetry.job_runner import JobRunner
from evenkeel.services.telemetry.partition_clock import Cut, PartitionClock


class Shard:
    """Everything of one input partition."""

    def __init__(self, memory: PartitionMemory, newest_offset: int, *, window_iterations: int) -> None:
        """Starts with what was said of its jobs.

        Args:
            memory: That.
            newest_offset: Of the record before the first one that will be read.
            window_iterations: Length of a rollup's window.
        """
        self.memory = memory
        self.newest_offset = newest_offset
        self.clock = PartitionClock()
        self.jobs: dict[str, JobRunner] = {}
        self.all_back_at_seconds = 0.0
        self._window_iterations = window_iterations

    def job(self, job_id: str) -> JobRunner:
        """A job; one that was not heard yet goes on where it was when it was heard last."""
        job = self.jobs.get(job_id)
        if job is not None:
            return job
        said = self.memory.jobs.pop(job_id, None)
        # Not in what was read back, and that was not all: the numbers only have to go on growing.
        first_sequence = 0 if self.memory.complete else round(time.time() * 1000)
        stream = JobStream(job_id, first_sequence=first_sequence)
        if said is not None:
            stream.resume(said, until_offset=self.memory.until_offset, now_seconds=self.clock.now_seconds)
        stream.wait_for_all(self.all_back_at_seconds)
        job = self.jobs[job_id] = JobRunner(stream, window_iterations=self._window_iterations)
        return job

    def forget(self, job_id: str) -> None:
        """A job is over; should it be heard again, nothing is known of it."""
        del self.jobs[job_id]
        self.memory.complete = False

    def after(self, cut: Cut | None) -> None:
        """Nothing could be heard for a while: that is no rank's silence, and ranks are back one by one."""
        if cut is None:
            return
        self.all_back_at_seconds = cut.until_seconds + min(cut.seconds, RETURN_SECONDS)
        for job in self.jobs.values():
            job.stream.after_a_cut(cut.seconds, until_seconds=cut.until_seconds)
