"""The port through which training code says what happened. Implementations never block and never raise."""

import time
from collections.abc import Callable

from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.emit.progress import ProgressMark


def process_event(
    kind: "process_pb2.ProcessEventKind.ValueType", rank: int, incarnation: int, detail: str = ""
) -> process_pb2.ProcessEvent:
    """What happens now to a process of a rank."""
    return process_pb2.ProcessEvent(
        at_unix_seconds=time.time(), kind=kind, rank=rank, incarnation=incarnation, detail=detail
    )


class Emitter:
    """Takes iterations, progress and events from the training thread. This one tells nobody of them.

    Attributes:
        progress: Where the training thread says which operation it has reached, for whoever reads it in the process.
    """

    def __init__(self) -> None:
        self.progress = ProgressMark()

    def emit_later(self, build: Callable[[], Measured]) -> None:
        """One finished iteration; another thread sorts what was measured of it, in its turn."""

    def emit_event(self, event: process_pb2.ProcessEvent) -> None:
        """Something happened to a process; sent at once rather than with the next batch."""

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Send what is queued, for at most ``timeout_seconds``, then stop."""
