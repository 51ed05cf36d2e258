"""The port through which training code says what happened. Implementations never block and never raise."""

from collections.abc import Callable
from typing import Protocol

from evenkeel.telemetry.v1 import telemetry_pb2
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class Emitter(Protocol):
    """Takes samples, progress and events from the training thread."""

    @property
    def progress(self) -> ProgressMark:
        """Where the training thread says which operation it has reached."""

    def emit_sample(self, sample: telemetry_pb2.Sample) -> None:
        """One finished iteration. The message belongs to the emitter from here on: do not change it."""

    def emit_later(self, build: Callable[[], telemetry_pb2.Sample]) -> None:
        """One finished iteration whose message is built on another thread, in its turn."""

    def emit_event(self, event: telemetry_pb2.ProcessEvent) -> None:
        """Something happened to a process; sent at once rather than with the next batch."""

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Send what is queued, for at most ``timeout_seconds``, then stop."""
