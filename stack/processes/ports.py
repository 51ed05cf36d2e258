"""Free TCP ports on loopback."""

import socket

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on now.

    Somebody may take one before its user binds it; whoever starts a server tries again with other ports then.
    """
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_listening(port: int, *, timeout_seconds: float = 0.5) -> bool:
    """Whether somebody accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_seconds):
            return True
    except OSError:
        return False
