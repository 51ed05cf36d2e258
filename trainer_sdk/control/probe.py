"""Probes on their way from a handler thread to the training thread, which alone may use the device."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_MATRIX_SIZE = 4096
MAX_REPETITIONS = 100


@dataclass(slots=True, kw_only=True)
class _Request:
    matrix_size: int
    repetitions: int
    done: threading.Event = field(default_factory=threading.Event)
    seconds: list[float] = field(default_factory=list)
    error: str = ""


class ProbeDesk:
    """At most one probe at a time; one that nobody serves ends at its caller's deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: _Request | None = None

    def ask(self, matrix_size: int, repetitions: int, timeout_seconds: float) -> list[float]:
        """Seconds of each repetition, once the training thread reached an iteration border. Handler threads.

        Raises:
            ValueError: A size or count out of range.
            RuntimeError: Another probe is under way, or the probe itself failed.
            TimeoutError: The training thread reached no border in time.
        """
        if not 1 <= matrix_size <= MAX_MATRIX_SIZE:
            raise ValueError(f"matrix_size {matrix_size}: use 1 to {MAX_MATRIX_SIZE}")
        if not 1 <= repetitions <= MAX_REPETITIONS:
            raise ValueError(f"repetitions {repetitions}: use 1 to {MAX_REPETITIONS}")
        request = _Request(matrix_size=matrix_size, repetitions=repetitions)
        with self._lock:
            if self._request is not None:
                raise RuntimeError("another probe is under way: ask again when it is done")
            self._request = request
        try:
            if not request.done.wait(timeout_seconds):
                raise TimeoutError(f"no iteration border within {timeout_seconds:.1f} s")
        finally:
            with self._lock:
                self._request = None
        if request.error:
            raise RuntimeError(f"the probe failed: {request.error}")
        return request.seconds

    def serve(self, run: Callable[[int, int], list[float]]) -> bool:
        """Run the waiting probe, if there is one. Training thread, at an iteration border; well under 1 us without one.

        Args:
            run: Times multiplications of square matrices: (size, repetitions) to seconds of each.

        Returns:
            Whether a probe ran.
        """
        request = self._request
        if request is None or request.done.is_set():
            return False
        try:
            request.seconds = run(request.matrix_size, request.repetitions)
        except (RuntimeError, ValueError, MemoryError) as error:
            request.error = f"{type(error).__name__}: {error}"
        request.done.set()
        return True
