"""A device that is slower than the machine says: real compute, paced to a stated speed."""

import time
from collections.abc import Callable

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind

_HANG_SLICE_SECONDS = 0.05
_MAX_CREDIT_SECONDS = 0.004


class EmulatedDevice:
    """Paces compute segments: a segment of f operations lasts f / (flops_per_second * speed), never less than it took.

    The sleep aims at an absolute moment. What a segment overshoots (sleep is late, other processes had the core) is
    credit: the following segments end that much earlier, so that an iteration's sum is right. The credit is capped, so
    a real stall stays visible. A probe neither leaves nor uses credit: each of its products has to be right by itself.

    Args:
        flops_per_second: Speed of the healthy device that this one stands for.
        speed: Read at each segment's end: relative speed, 1.0 = healthy.
        hangs: Read at each segment's end: True blocks the caller until it is False again.
        input_seconds: Read at the end of each DATA segment: how long it lasts at least; 0 = as long as it takes.
        clock: Monotonic seconds.
        sleep: Blocks for so many seconds.

    Raises:
        ValueError: ``flops_per_second`` is not above 0.
    """

    def __init__(
        self,
        *,
        flops_per_second: float,
        speed: Callable[[], float] = lambda: 1.0,
        hangs: Callable[[], bool] = lambda: False,
        input_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not flops_per_second > 0:
            raise ValueError(f"flops_per_second {flops_per_second}: must be above 0")
        self._flops_per_second = flops_per_second
        self._speed = speed
        self._hangs = hangs
        self._input_seconds = input_seconds
        self._clock = clock
        self._sleep = sleep
        self._credit_seconds = 0.0
        self._began_seconds = clock()
        self._seconds: dict[ComputeKind, float] = {}

    def begin(self, kind: ComputeKind) -> float:
        """A compute segment starts, or resumes after waiting."""
        self._began_seconds = now = self._clock()
        return now

    def end(self, flops: float, kind: ComputeKind) -> float:
        """The segment ends: sleep until it has lasted as long as on the device this one stands for.

        A segment without operations (``flops`` 0) is measured and not paced, unless input is slow.
        """
        while self._hangs():
            self._sleep(_HANG_SLICE_SECONDS)
        now = self._clock()
        if flops > 0:
            duration_seconds = flops / (self._flops_per_second * self._speed())
            is_probe = kind is ComputeKind.PROBE
            deadline = self._began_seconds + duration_seconds - (0.0 if is_probe else self._credit_seconds)
            if now < deadline:
                self._sleep(deadline - now)
                now = self._clock()
            if not is_probe:
                self._credit_seconds = min(max(now - deadline, 0.0), _MAX_CREDIT_SECONDS)
        elif kind is ComputeKind.DATA and now < (deadline := self._began_seconds + self._input_seconds()):
            self._sleep(deadline - now)
            now = self._clock()
        self._seconds[kind] = self._seconds.get(kind, 0.0) + (now - self._began_seconds)
        self._began_seconds = now
        return now

    def take(self) -> Computed:
        """What the device that this one stands for took; the thread's own time says nothing of it."""
        taken, self._seconds = self._seconds, {}
        return Computed(taken, None, True)
