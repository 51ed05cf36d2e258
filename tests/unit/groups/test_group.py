"""A group whose backend refuses: what starts an operation may be a hook, so it is the wait that fails."""

import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
import torch

from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.groups.errors import PeerLost
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.waiting import Waiter

SAID = """NCCL error: remote process exited or there was a network error
Last error:
socketProgress: Connection closed by remote peer
Exception raised from checkForNCCLErrorsInternal at ProcessGroupNCCL.cpp:2770 (most recent call first):
frame #0: c10::Error::Error"""


class BrokenBackend:
    """As NCCL's once a peer is gone: whatever is started raises."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object) -> None:
            raise c10d.DistBackendError(SAID)

        return refuse


def test_what_a_broken_backend_refuses_to_start_is_a_lost_peer_once_somebody_waits() -> None:
    group = Group("world", (0, 1), 0, BrokenBackend(), Waiter(lambda: False))
    pending = group.start_all_reduce(torch.ones(2))
    assert pending.work.is_completed()
    with pytest.raises(PeerLost) as lost:
        pending.wait()
    assert str(lost.value) == (
        "NCCL error: remote process exited or there was a network error "
        "Last error: socketProgress: Connection closed by remote peer"
    )
    for operation in (
        lambda: group.start_broadcast(torch.ones(2), 0).wait(),
        lambda: group.all_gather(torch.ones(2)),
        lambda: group.all_to_all(torch.ones(2), [1, 1], [1, 1]),
    ):
        with pytest.raises(PeerLost, match="Connection closed by remote peer"):
            operation()


def test_on_the_cpu_too_it_is_the_wait_that_fails() -> None:
    group = Group("world", (0, 1), 0, BrokenBackend(), Waiter(lambda: False))
    work = group.start_all_reduce(torch.ones(2)).work
    with pytest.raises(PeerLost, match="Connection closed"):
        Waiter(lambda: False).collective(work)
    with pytest.raises(c10d.DistBackendError):
        work.wait(timedelta(seconds=1))


def test_what_failed_to_start_does_not_keep_a_buried_backend() -> None:
    """Its end may block: it must come where it is buried, not where somebody drops the operation."""

    class Abortable(BrokenBackend):
        def abort(self) -> None:
            pass

    backend = Abortable()
    gone = weakref.ref(backend)
    group = Group("world", (0, 1), 0, backend, Waiter(lambda: False))
    del backend
    pending = group.start_all_reduce(torch.ones(2))
    group.bury()
    assert gone() is None
    assert pending.work.is_completed()


def test_a_backend_is_let_go_once_nothing_in_it_is_on_its_way() -> None:
    """Its end would wait in C++: a thread that comes back from there while the interpreter ends aborts the process."""

    class OnItsWay:
        ended = False

        def is_completed(self) -> bool:
            return self.ended

    class Gloo(c10d.ProcessGroupGloo):
        def __init__(self) -> None:
            """No connections."""

        def allreduce(self, *_: object) -> OnItsWay:
            return work

    work, backend = OnItsWay(), Gloo.__new__(Gloo)
    gone = weakref.ref(backend)
    group = Group("world", (0, 1), 0, backend, Waiter(lambda: False))
    del backend
    group.start_all_reduce(torch.ones(2))
    burial = threading.Thread(target=group.bury, daemon=True)
    burial.start()
    burial.join(0.2)
    assert burial.is_alive()
    assert gone() is not None
    work.ended = True
    burial.join(10.0)
    assert gone() is None
