from collections.abc import Callable
from datetime import timedelta

import pytest

from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.waiting import Waiter


class ScriptedWork:
    """A collective that ends after some slices, as gloo's do: a slice that expires raises and harms nothing."""

    def __init__(self, slices: int, failure: str = "") -> None:
        self.slices = slices
        self.failure = failure
        self.waited = 0

    def is_completed(self) -> bool:
        return self.waited >= self.slices

    def wait(self, timeout: timedelta) -> bool:
        assert timeout.total_seconds() <= 0.05
        done = self.is_completed()
        self.waited += 1
        if not done:
            raise RuntimeError("Operation timed out!")
        if self.failure:
            raise RuntimeError(self.failure)
        return True

    def exception(self) -> BaseException | None:
        return None


def _after(calls: int) -> Callable[[], bool]:
    seen = 0

    def interrupted() -> bool:
        nonlocal seen
        seen += 1
        return seen > calls

    return interrupted


def test_expired_slices_are_waited_on() -> None:
    work = ScriptedWork(slices=5)
    Waiter(lambda: False).collective(work)
    assert work.waited == 6


def test_a_collective_that_ends_between_a_slice_and_the_next_look_is_no_lost_peer() -> None:
    # The slice expires while the collective completes: is_completed is already True in the handler.
    work = ScriptedWork(slices=1)
    Waiter(lambda: False).collective(work)
    assert work.waited == 2
    assert work.is_completed()


def test_a_failed_collective_is_a_lost_peer_with_the_transports_words() -> None:
    with pytest.raises(PeerLost, match="Connection closed by peer"):
        Waiter(lambda: False).collective(ScriptedWork(slices=2, failure="Connection closed by peer"))


def test_an_interrupt_ends_a_wait_that_would_never_end() -> None:
    work = ScriptedWork(slices=10**9)
    with pytest.raises(Interrupted):
        Waiter(_after(3)).collective(work)
    assert work.waited == 3


def test_an_interrupt_before_the_wait_does_not_touch_the_collective() -> None:
    work = ScriptedWork(slices=0)
    with pytest.raises(Interrupted):
        Waiter(lambda: True).collective(work)
    assert work.waited == 0


def test_a_kernel_is_polled_and_then_ordered_before_the_stream() -> None:
    class Kernel(ScriptedWork):
        polls = 0

        def is_completed(self) -> bool:
            self.polls += 1
            self.waited = self.polls
            return super().is_completed()

    kernel = Kernel(slices=4)
    Waiter(lambda: False).kernel(kernel)
    assert kernel.polls >= 4
    with pytest.raises(Interrupted):
        Waiter(_after(2)).kernel(Kernel(slices=10**9))
    with pytest.raises(PeerLost, match="NCCL"):
        Waiter(lambda: False).kernel(Kernel(slices=2, failure="NCCL communicator was aborted"))


def test_a_kernel_that_failed_is_a_lost_peer_although_its_wait_is_content() -> None:
    # As ProcessGroupNCCL does it: an operation with an error is completed, and a wait that does not block never raises.
    class Failed(ScriptedWork):
        def exception(self) -> BaseException | None:
            return RuntimeError("NCCL error: remote process exited") if self.is_completed() else None

    failed = Failed(slices=0)
    with pytest.raises(PeerLost, match="remote process exited"):
        Waiter(lambda: False).kernel(failed)
    assert failed.waited == 0, "the stream must not wait for it"


def test_a_condition_is_polled_until_it_holds_or_the_time_is_over() -> None:
    Waiter(lambda: False).until(_after(3), 5.0, "three looks")
    with pytest.raises(PeerLost, match=r"the impossible not reached within 0\.01 s"):
        Waiter(lambda: False).until(lambda: False, 0.01, "the impossible")
    with pytest.raises(Interrupted):
        Waiter(_after(2)).until(lambda: False, 5.0, "anything")
