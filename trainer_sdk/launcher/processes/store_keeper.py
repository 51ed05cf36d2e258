"""Keeps a rendezvous store running at one address, whatever happens to its process.

The parent of all ranks holds the listening socket, which each incarnation of the store inherits: so the address stays,
and who connects while no store runs waits in the socket's queue for the next one. That one is empty: the ranks that
live tell it again what they had said (:mod:`evenkeel.trainer_sdk.groups.store.store_watch`), and for those that have
finished this says that the job is.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence

from evenkeel.trainer_sdk.groups.store.store_watch import StorePlace
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED

_QUICK_END_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class StoreKeeper:
    """Used by the zygote, on its only thread; nothing here blocks.

    Args:
        job_id: Job.
        fork: Forks a process that runs a function: its id. Raises OSError when there is none to be had.
        place: Address and port to listen on; port 0 = any.

    Raises:
        OSError: The address is not this host's, or in use.

    Attributes:
        address: Host and port of the store, now and later.
        num_starts: How many processes the store has had.
    """

    def __init__(
        self, job_id: str, fork: Callable[[Callable[[], int]], int], place: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self._job_id = job_id
        self._fork = fork
        self._listener = socket.create_server(place, backlog=socket.SOMAXCONN)
        host, port = self._listener.getsockname()
        self.address: tuple[str, int] = (host, port)
        self.num_starts = 0
        self._told = -1  # where the newest store listens to us
        self._finished = False
        self._started_at = 0.0
        self._pause_seconds = 0.0
        self._due_at: float | None = 0.0

    @classmethod
    def of_this_host(
        cls, job_id: str, stores: Sequence[str], fork: Callable[[Callable[[], int]], int]
    ) -> "StoreKeeper | None":
        """That of the first address in the list that is this host's: None = others have them.

        Args:
            job_id: Job.
            stores: ``host:port`` of each; empty = the only one, of this machine.
            fork: See above.
        """
        for place in StorePlace.all_of(",".join(stores), job_id) if stores else ():
            with contextlib.suppress(OSError):  # another host's
                return cls(job_id, fork, (socket.gethostbyname(place.host), place.port))
        return None if stores else cls(job_id, fork)

    @property
    def due_in_seconds(self) -> float | None:
        """When :meth:`start` is to be called; None while a store runs."""
        return None if self._due_at is None else max(self._due_at - time.monotonic(), 0.0)

    def start(self) -> int:
        """Start a store's process: its id. Call when it is due.

        Raises:
            OSError: There is no process to be had: it is due again later.
        """
        self._back_off()
        reader, writer = os.pipe()
        try:
            pid = self._fork(lambda: self._host(reader, writer))
        except OSError:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._told, self._due_at = writer, None
        self._started_at = time.monotonic()
        self.num_starts += 1
        if self._finished:
            self._tell_finished()
        return pid

    def ended(self) -> None:
        """The store's process is no more: the next one is due at once, unless this one did not last."""
        os.close(self._told)
        self._told = -1
        if time.monotonic() - self._started_at > _QUICK_END_SECONDS:
            self._pause_seconds = 0.0
        self._due_at = time.monotonic() + self._pause_seconds

    def job_finished(self) -> None:
        """A rank has finished: the others hear it, also when the store that it told dies after it."""
        self._finished = True
        self._tell_finished()

    def close_in_child(self, *, is_store: bool) -> None:
        """In a forked process: let go of what is not its own."""
        if self._told >= 0:
            os.close(self._told)
        if not is_store:
            self._listener.close()

    def _host(self, reader: int, writer: int) -> int:
        """In the store's process: ends when nobody is left who could tell it something."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore  # noqa: PLC0415 - only the parent has loaded it

        os.close(writer)
        # The store closes what it is given, and the next one inherits it too.
        descriptor = os.dup(self._listener.fileno())
        store = TCPStore(*self.address, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
        known = PrefixStore(self._job_id, store)
        with os.fdopen(reader) as lines:
            for line in lines:
                known.set(line.strip(), "null")
        return 0

    def _back_off(self) -> None:
        """Until it has lasted, each start makes the pause before the next one longer."""
        self._due_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(max(2.0 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)

    def _tell_finished(self) -> None:
        if self._told >= 0:
            with contextlib.suppress(BrokenPipeError):  # it has just died: the next one is told
                os.write(self._told, JOB_FINISHED.encode() + b"\n")
