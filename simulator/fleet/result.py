"""What came of a simulated run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A while in which nothing changed.

    Attributes:
        from_seconds: Start.
        until_seconds: End.
        rate: Throughput relative to the fault-free job's.
        num_live: Devices that are not dead.
        bound: Proportional bound: sum of true speeds over the number of devices.
    """

    from_seconds: float
    until_seconds: float
    rate: float
    num_live: int
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of one system.

    Attributes:
        strategy: The system.
        duration_seconds: Simulated time.
        fault_free_iteration_seconds: Of the full shape, healthy.
        throughput: Mean throughput relative to fault-free over the whole run, pauses and stops included.
        bound: Mean proportional bound over the whole run.
        paused_seconds: In transitions and restarts.
        stopped_seconds: Without being able to run: waiting for a verdict or for repair.
        num_answers: Times that the system changed how the job runs.
        aborted_at_seconds: From then on it never ran again; None when it ran at the end.
        plan_seconds: CPU seconds of each of its answers; not part of what must repeat.
        segments: The run, in order.
    """

    strategy: str
    duration_seconds: float
    fault_free_iteration_seconds: float
    throughput: float
    bound: float
    paused_seconds: float
    stopped_seconds: float
    num_answers: int
    aborted_at_seconds: float | None
    plan_seconds: tuple[float, ...]
    segments: tuple[Segment, ...]

    @property
    def of_bound(self) -> float:
        """Throughput over the bound."""
        return self.throughput / self.bound if self.bound > 0.0 else 0.0
