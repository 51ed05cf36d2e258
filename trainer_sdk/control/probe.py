"""Probes on their way from a handler thread to the training thread, which alone may use the device and the groups."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from evenkeel.layouts.rank_state import LinkProbe

MAX_MATRIX_SIZE = 4096
MAX_REPETITIONS = 100
MAX_LINK_BYTES = 1 << 26
MAX_PROBE_ID = 1 << 40
"""Ids travel in doubles, and their sums must be exact."""


@dataclass(slots=True, kw_only=True)
class _Request:
    repetitions: int
    matrix_size: int = 0
    link: LinkProbe | None = None
    done: threading.Event = field(default_factory=threading.Event)
    seconds: list[float] = field(default_factory=list)
    error: str = ""


class ProbeDesk:
    """At most one probe at a time; one that nobody serves ends at its caller's deadline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: _Request | None = None
        self._probes_links = False

    # ---- handler threads

    def ask(self, matrix_size: int, repetitions: int, timeout_seconds: float) -> list[float]:
        """Seconds of each product, once the training thread reached an iteration border.

        Raises:
            ValueError: A size or count out of range.
            RuntimeError: Another probe is under way, or the probe itself failed.
            TimeoutError: The training thread reached no border in time.
        """
        _check("matrix_size", matrix_size, MAX_MATRIX_SIZE)
        _check("repetitions", repetitions, MAX_REPETITIONS)
        return self._answer(_Request(repetitions=repetitions, matrix_size=matrix_size), timeout_seconds)

    def ask_link(self, link: LinkProbe, timeout_seconds: float) -> list[float]:
        """Seconds of each way there and back, once everybody who is asked was ready at the same step vote.

        Raises:
            ValueError: A number out of range, or a training loop without step votes.
            RuntimeError: Another probe is under way, or this one was not run; the message says why.
            TimeoutError: The training thread reached no border in time.
        """
        if not self._probes_links:
            raise ValueError("this rank's training loop has no step vote: it cannot agree with others on a moment")
        _check("probe_id", link.probe_id, MAX_PROBE_ID)
        _check("num_bytes", link.num_bytes, MAX_LINK_BYTES)
        _check("repetitions", link.repetitions, MAX_REPETITIONS, least=2)  # the first way is not clean
        if link.num_ranks < 2 or link.num_ranks % 2:
            raise ValueError(f"num_ranks {link.num_ranks}: use two for each link")
        return self._answer(_Request(repetitions=link.repetitions, link=link), timeout_seconds)

    def _answer(self, request: _Request, timeout_seconds: float) -> list[float]:
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

    # ---- the training thread

    def serve(self, run: Callable[[int, int], list[float]]) -> bool:
        """Run the waiting probe of the device, if there is one, at an iteration border; well under 1 us without one.

        Args:
            run: Times multiplications of square matrices: (size, repetitions) to seconds of each.

        Returns:
            Whether a probe ran.
        """
        request = self._request
        if request is None or request.link is not None or request.done.is_set():
            return False
        try:
            request.seconds = run(request.matrix_size, request.repetitions)
        except (RuntimeError, ValueError, MemoryError) as error:
            request.error = f"{type(error).__name__}: {error}"
        request.done.set()
        return True

    def serve_links(self) -> None:
        """From now on probes of links are accepted: the training loop looks for them before each step vote."""
        self._probes_links = True

    def waiting_link(self) -> LinkProbe | None:
        """The probe of a link that waits, if there is one; well under 1 us without one."""
        request = self._request
        return None if request is None or request.done.is_set() else request.link

    def end_link(self, link: LinkProbe, *, seconds: list[float] | None = None, error: str = "") -> None:
        """Answer a probe of a link with its figures, or with why it was not run; nothing if its caller has given up."""
        request = self._request
        if request is None or request.link is not link:
            return
        request.seconds, request.error = seconds or [], error
        request.done.set()


def _check(name: str, value: int, most: int, least: int = 1) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} {value}: use {least} to {most}")
