"""A store that is started again whenever it is killed, as the parent of a job's ranks does it."""

import contextlib
import mmap
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper
from tests.integration.elastic.rank_process import DEADLINE_SECONDS, fork


class KeptStore:
    """A store process and the process that keeps it. Forked processes may kill it too.

    Attributes:
        address: ``host:port`` of the store.
    """

    def __init__(self, job_id: str = "job") -> None:
        self._shared = memoryview(mmap.mmap(-1, 16)).cast("q")  # the store's pid, and how many there were
        keeper = StoreKeeper(job_id)
        self.address = keeper.address
        self._keeper_pid = fork(lambda: self._keep(keeper))
        keeper.close_in_child(is_store=False)
        self.await_start(1)

    @property
    def num_starts(self) -> int:
        """How many processes the store has had."""
        return self._shared[1]

    def kill(self) -> None:
        """End the store that runs now; returns before there is another one."""
        with contextlib.suppress(ProcessLookupError):  # somebody else was faster
            os.kill(self._shared[0], signal.SIGKILL)

    def await_start(self, number: int) -> None:
        """Wait for the store's so manieth process."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.num_starts < number:
            assert time.monotonic() < deadline, f"store {number} does not start"
            time.sleep(0.002)

    def job_finished(self) -> None:
        """A rank has finished: what the launcher's zygote sees in its exit status."""
        os.kill(self._keeper_pid, signal.SIGUSR1)

    def pause(self) -> None:
        """No store from now on, until :meth:`resume`."""
        os.kill(self._keeper_pid, signal.SIGSTOP)
        self.kill()

    def resume(self) -> None:
        """There may be a store again."""
        os.kill(self._keeper_pid, signal.SIGCONT)

    def close(self) -> None:
        """End both processes; the store ends when nobody keeps it."""
        os.kill(self._keeper_pid, signal.SIGKILL)
        os.waitpid(self._keeper_pid, 0)

    def _keep(self, keeper: StoreKeeper) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: keeper.job_finished())

        def host() -> int:
            keeper.close_in_child(is_store=True)
            return keeper.host()

        while True:
            self._shared[0] = fork(host)
            self._shared[1] += 1
            os.waitpid(self._shared[0], 0)


@dataclass(frozen=True, kw_only=True)
class StoreFate:
    """A rank kills the store before or after it does something of an epoch for the ``nth`` time.

    What it does is a method's name: ``meet`` (epochs and the farewell), ``_await`` (in a meeting: wait for what others
    say) or ``connect`` (a group).
    """

    method: str
    epoch: int
    nth: int = 1
    after: bool = False


_OWNERS: dict[str, type] = {"meet": Rendezvous, "_await": Rendezvous, "connect": GroupBuilder}


@contextmanager
def killing_the_store(store: KeptStore, fates: Sequence[StoreFate], mailbox: Mailbox) -> Iterator[None]:
    """In a rank: the fates that it has for the store come true."""
    calls: Counter[tuple[str, int]] = Counter()

    def deadly(name: str, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            epoch = max(mailbox.state.promised.epoch, mailbox.state.epoch, 0)
            calls[name, epoch] += 1
            due = [fate for fate in fates if (fate.method, fate.epoch, fate.nth) == (name, epoch, calls[name, epoch])]
            if any(not fate.after for fate in due):
                store.kill()
            answer = method(*arguments, **options)
            if any(fate.after for fate in due):
                store.kill()
            return answer

        return call

    methods = {name: getattr(owner, name) for name, owner in _OWNERS.items()}
    for name, owner in _OWNERS.items():
        setattr(owner, name, deadly(name, methods[name]))
    try:
        yield
    finally:
        for name, owner in _OWNERS.items():
            setattr(owner, name, methods[name])
