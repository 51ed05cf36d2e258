"""Free TCP ports on loopback."""

import socket
from collections.abc import Callable

from evenkeel.stack.errors import StackError

LOOPBACK = "127.0.0.1"
NUM_ATTEMPTS = 3
_TAKEN = ("in use", "cannot listen on")


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on now.

    Somebody may take one before its user binds it: see :func:`start_on_free_ports`.
    """
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start_on_free_ports(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """Starts a server; again, with other ports, where somebody took one between our look and the server's bind.

    Args:
        start: Looks for ports and starts it.
        stop: Ends what did not start.

    Raises:
        StackError: It did not start.
    """
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            start()
            return
        except StackError as error:
            stop()
            if attempt == NUM_ATTEMPTS or not any(words in str(error) for words in _TAKEN):
                raise


def is_listening(port: int, *, timeout_seconds: float = 0.5) -> bool:
    """Whether somebody accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_seconds):
            return True
    except OSError:
        return False
