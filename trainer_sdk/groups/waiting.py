"""Waits that look at an interrupt flag between short slices.

After a kill only the ranks that talk to the dead one notice; the others would sit until their timeout, and a hung peer
raises nowhere. So no wait of the training thread is longer than one slice. Slicing is harmless for gloo collectives
only: a timed-out slice of a gloo send or recv closes the pair, which is why :mod:`evenkeel.trainer_sdk.groups.group`
    has none.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost

SLICE_SECONDS = 0.02
"""Longest time until an interrupt is seen. A slice that ends early costs nothing; an expired one about 20 us."""

_FIRST_POLL_SECONDS = 0.0005
_LAST_POLL_SECONDS = 0.005
_DEVICE_POLL_SECONDS = 0.00005


class Work(Protocol):
    """The part of ``torch.distributed.Work`` that waiting needs."""

    def is_completed(self) -> bool:
        """Whether the operation ended, in success or failure."""

    def wait(self, timeout: timedelta) -> bool:
        """Wait for it; raises on timeout, and on failure where the backend works on the CPU."""

    def exception(self) -> BaseException | None:
        """How an operation that ended failed; only looked at on an accelerator."""


class FailedWork:
    """An operation that could not even be started."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def is_completed(self) -> bool:
        """It ended as it began."""
        return True

    def wait(self, timeout: timedelta) -> bool:
        """Raises what starting it raised."""
        raise self._error

    def exception(self) -> BaseException:
        """What starting it raised."""
        return self._error


class Waiter:
    """Waits on behalf of the training thread.

    Args:
        interrupted: Checked between slices; True ends the wait. Must be cheap.
        lost: Likewise; why a peer is gone, if the transport does not notice it.
    """

    def __init__(self, interrupted: Callable[[], bool], lost: Callable[[], str] = str) -> None:
        self.interrupted = interrupted
        self._lost = lost
        self._slice = timedelta(seconds=SLICE_SECONDS)

    def check(self) -> None:
        """End here if the rank is interrupted, or has lost a peer.

        Raises:
            Interrupted: It is.
            PeerLost: It has.
        """
        if self.interrupted():
            raise Interrupted
        if why := self._lost():
            raise PeerLost(why)

    def collective(self, work: Work) -> None:
        """Wait for a collective of a CPU backend.

        Raises:
            Interrupted: The flag was set first; the collective stays pending.
            PeerLost: The collective failed.
        """
        while True:
            self.check()
            # Looked at before the slice: a collective may end between the slice's timeout and a later look.
            ended = work.is_completed()
            try:
                work.wait(self._slice)
            except RuntimeError as error:
                if ended:
                    raise PeerLost(_said(error)) from error
                continue
            return

    def kernel(self, work: Work) -> None:
        """Wait for a collective that runs on an accelerator, then order the current stream behind it.

        Raises:
            Interrupted: The flag was set first; the collective stays pending.
            PeerLost: The collective failed.
        """
        try:
            while not work.is_completed():
                self.check()
                time.sleep(_DEVICE_POLL_SECONDS)
            # NCCL calls a failed operation completed, and waiting for one would only order the stream behind a kernel
            # that never ends.
            failure = work.exception()
            if failure is not None:
                raise PeerLost(_said(failure))
            work.wait(self._slice)
        except RuntimeError as error:
            raise PeerLost(_said(error)) from error

    def until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """Poll a condition, first every half millisecond, later every five.

        Raises:
            Interrupted: The flag was set first.
            PeerLost: The condition did not hold within ``timeout_seconds``.
        """
        deadline = time.monotonic() + timeout_seconds
        pause = _FIRST_POLL_SECONDS
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise PeerLost(f"{what} not reached within {timeout_seconds:g} s")
            time.sleep(pause)
            pause = min(pause * 1.2, _LAST_POLL_SECONDS)


def _said(failure: BaseException) -> str:
    """In one line, without the stack of the transport's own code."""
    return " ".join(str(failure).partition("Exception raised from")[0].split())
