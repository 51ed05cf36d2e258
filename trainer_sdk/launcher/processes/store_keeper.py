"""Keeps a rendezvous store at one address, whatever happens to its process.

The parent of all ranks holds the listening socket, which each incarnation of the store inherits: so the address stays,
and who connects while no store runs waits in the socket's queue for the next one. That one is empty: the ranks that
live tell it again what they had said (:mod:`evenkeel.trainer_sdk.groups.store.store_watch`), and for those that have
finished this says that the job is.
"""

import errno
import logging
import os
import socket
from collections.abc import Sequence
from typing import Self

from evenkeel.trainer_sdk.control.fleet.address import join_address
from evenkeel.trainer_sdk.groups.store.store_place import StorePlace, is_loopback
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED

_logger = logging.getLogger("evenkeel.launch")


class StoreKeeper:
    """Used by the parent of all ranks, on its only thread; nothing here blocks.

    Args:
        job_id: Job.
        host: Name or address to listen on.
        port: 0 = any.

    Raises:
        OSError: The address is not this host's, or in use.

    Attributes:
        address: ``host:port`` of the store, now and later.
    """

    def __init__(self, job_id: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._job_id = job_id
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Many a host knows its own name by a loopback address, by which nobody else reaches it.
        own = str(place[0]) if is_loopback(host) or not is_loopback(str(place[0])) else ""
        self._listener = socket.create_server((own, port), family=family, backlog=socket.SOMAXCONN)
        self.address = join_address(host, self._listener.getsockname()[1])
        self._hears, self._told = os.pipe()  # of whichever store runs; we hold both ends, so telling never fails
        self._finished = False

    @classmethod
    def of_this_host(cls, job_id: str, stores: Sequence[str]) -> Self | None:
        """That of the first address in the list that is this host's: None = others have them.

        Args:
            job_id: Job.
            stores: ``host:port`` of each; empty = the only one, of this machine.
        """
        for place in StorePlace.all_of(",".join(stores), job_id) if stores else ():
            try:
                return cls(job_id, place.host, place.port)
            except OSError as error:  # another host's, most likely
                if error.errno == errno.EADDRINUSE:
                    _logger.warning(
                        "no store is started at %s, which is in use on this host: fine if another agent of the job has "
                        "one there, else end what has the port, or give all hosts another one",
                        place,
                    )
        return None if stores else cls(job_id)

    def job_finished(self) -> None:
        """A rank has finished: the others hear it, also when the store that it told dies after it."""
        self._finished = True
        os.write(self._told, JOB_FINISHED.encode() + b"\n")

    def close_in_child(self, *, is_store: bool) -> None:
        """In a forked process: let go of what is not its own."""
        os.close(self._told)
        if not is_store:
            os.close(self._hears)
            self._listener.close()

    def host(self) -> int:
        """In a store's process: ends when nobody is left who could tell it something."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore  # noqa: PLC0415 - only the parent has loaded it

        # The store closes what it is given, and the next one inherits it too.
        descriptor = os.dup(self._listener.fileno())
        host, port, *_ = self._listener.getsockname()
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
        known = PrefixStore(self._job_id, store)
        if self._finished:
            known.set(JOB_FINISHED, "null")
        with os.fdopen(self._hears) as lines:
            for line in lines:
                known.set(line.strip(), "null")
        return 0
