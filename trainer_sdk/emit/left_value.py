"""A loss or norm that the training thread leaves behind, to be read by another thread."""

import sys
from typing import Any

from evenkeel.trainer_sdk.watch.guard import say_once


class LeftValue:
    """What a number was when the iteration ended, whatever the loop does to its tensor afterwards.

    A tensor is copied on its device, without the graph behind it, and nobody waits for the device.

    Args:
        value: A number, or a tensor of one element. Of a distributed tensor only one that is whole on this rank is
            taken: to add up the others' parts is a collective, which no thread but the training thread may begin.
    """

    __slots__ = ("_ready", "_value")

    def __init__(self, value: Any) -> None:
        self._ready: Any = None
        if hasattr(value, "placements"):
            value = _local(value)
        if hasattr(value, "detach"):
            value = value.detach().clone()
            if value.is_cuda:
                # The reader may be on another stream. The SDK loads without torch; a tensor comes with it.
                self._ready = sys.modules["torch"].cuda.current_stream(value.device).record_event()
        self._value = value

    def read(self, what: str) -> float | None:
        """The number; None when it is none, which is said. May wait for an accelerator: never on the training thread.

        Args:
            what: What it is of an iteration.
        """
        if self._ready is not None:
            self._ready.synchronize()
        if self._value is None:
            return None
        try:
            return float(self._value)
        except (TypeError, ValueError, RuntimeError) as error:  # the sample is worth having without it
            say_once(what, "the %s of an iteration is not reported, as it is not one number: %s", what, error)
            return None


def left(value: Any) -> LeftValue | float | None:
    """The value as it is now: one that nobody can change is left as it is."""
    return value if value is None or isinstance(value, float | int) else LeftValue(value)


def number(value: LeftValue | float | None, what: str) -> float | None:
    """The number of a value that may have been left; see :meth:`LeftValue.read`."""
    return value.read(what) if isinstance(value, LeftValue) else value


def _local(value: Any) -> Any:
    """A distributed tensor's whole on this rank; None, said once, when it has only a part."""
    if all(placement.is_replicate() for placement in value.placements):
        return value.to_local()
    say_once(
        "distributed",
        "a distributed tensor with placements %s is not reported: give loss or gradient_norm as its full_tensor()",
        value.placements,
    )
    return None
