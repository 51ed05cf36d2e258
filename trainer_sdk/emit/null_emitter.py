"""Emits nothing: what a trainer uses when no Kafka address is set."""

from collections.abc import Callable

from evenkeel.telemetry.v1 import telemetry_pb2
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class NullEmitter:
    """The emitter port as a no-op. The progress mark still works, for whoever reads it in the process."""

    def __init__(self) -> None:
        self.progress = ProgressMark()

    def emit_sample(self, sample: telemetry_pb2.Sample) -> None:
        """Forget the sample."""

    def emit_later(self, build: Callable[[], telemetry_pb2.Sample]) -> None:
        """Forget the sample unbuilt."""

    def emit_event(self, event: telemetry_pb2.ProcessEvent) -> None:
        """Forget the event."""

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Nothing to send."""
