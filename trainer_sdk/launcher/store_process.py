"""The process that hosts the rendezvous store, so that no rank's death takes it along."""

import os
import signal


def run_store(port_writer: int) -> int:
    """Host a TCPStore on loopback until killed; writes its port to ``port_writer`` first."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - the zygote has loaded it; the supervisor never needs it

    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    os.write(port_writer, f"{store.port}\n".encode())
    os.close(port_writer)
    while True:
        signal.pause()
