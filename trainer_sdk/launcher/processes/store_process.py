"""The process that hosts the rendezvous store, so that no rank's death takes it along."""

import os
import socket


def run_store(listener: socket.socket, told: int, job_id: str) -> int:
    """Host a TCPStore until killed; returns when nobody is left who could tell it something.

    Args:
        listener: A listening socket, which may be older than this process and outlive it.
        told: Pipe with lines; each is a key that is set, for what the parent of the ranks knows.
        job_id: Prefix of those keys.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # noqa: PLC0415 - only the zygote has loaded it

    host, port = listener.getsockname()
    # The store closes what it is given.
    descriptor = os.dup(listener.fileno())
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    known = PrefixStore(job_id, store)
    with os.fdopen(told) as lines:
        for line in lines:
            known.set(line.strip(), "null")
    return 0
