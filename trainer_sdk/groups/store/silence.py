"""Connections that end when the other host says nothing any more: it died without a word, or a cable is cut.

TCP itself notices neither for many minutes.
"""

import contextlib
import os
import socket
from pathlib import Path

SILENCE_SECONDS = 5
"""A cable that is plugged in again within this time has not been noticed."""


def bound_silence(line: socket.socket) -> None:
    """The connection ends when its other side has not even acknowledged anything for :data:`SILENCE_SECONDS`."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", SILENCE_SECONDS - 1),
        ("TCP_USER_TIMEOUT", 1000 * SILENCE_SECONDS),
    ):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def bound_silence_towards(port: int) -> None:
    """The same for all of this process's connections to a port, of torch's own clients too, who show nobody theirs."""
    folder = Path("/proc/self/fd")
    for each in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it is closed meanwhile
            if not str(each.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(each.name))) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6) and line.getpeername()[1] == port:
                    bound_silence(line)
