"""What becomes of telling a store that does not answer, or not for long."""

import socket
import threading
from typing import Any

from evenkeel.trainer_sdk.groups.store.store_place import StorePlace
from evenkeel.trainer_sdk.groups.store.store_watch import OwnEntries, StoreWatch


class _Watch(StoreWatch):
    """Its clients are not torch's: they wait until somebody lets them, and fail."""

    def __init__(self, listener: socket.socket) -> None:
        self.asked, self.may_fail, self.noticed = threading.Semaphore(0), threading.Event(), threading.Event()
        entries = OwnEntries()
        entries.add({"said": b"1"})
        super().__init__(StorePlace("127.0.0.1", listener.getsockname()[1], "job"), entries)

    def connect(self) -> Any:
        self.asked.release()
        assert self.may_fail.wait(30.0)
        raise RuntimeError("it has ended")

    def lost(self) -> None:
        super().lost()
        self.noticed.set()


def test_the_end_of_a_store_is_noticed_while_it_is_told_something() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30.0)
        watch = _Watch(listener)
        with listener.accept()[0]:
            assert watch.asked.acquire(timeout=30.0)
        assert watch.noticed.wait(10.0)
        watch.may_fail.set()


def test_a_store_that_could_not_be_told_is_told_again_in_another_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30.0)
        watch = _Watch(listener)
        watch.may_fail.set()
        with listener.accept()[0], listener.accept()[0]:
            assert watch.asked.acquire(timeout=30.0)
            assert watch.asked.acquire(timeout=30.0)
        assert watch.generation
