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


def peer_of(line: socket.socket) -> tuple[str, int]:
    """Address and port that a connection leads to; torch's clients say it in the way of IPv6 also where it is none."""
    host, port, *_ = line.getpeername()
    return host.removeprefix("::ffff:"), port


def end_all_towards(peer: tuple[str, int]) -> None:
    """This process's connections to an address end, of torch's clients too, who show nobody theirs: no wait goes on."""
    folder = Path("/proc/self/fd")
    for each in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it is closed meanwhile
            if not str(each.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(each.name))) as line:
                if line.family in (socket.AF_INET, socket.AF_INET6) and peer_of(line) == peer:
                    line.shutdown(socket.SHUT_RDWR)
