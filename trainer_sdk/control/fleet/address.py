"""``host:port`` as people write it: an IPv6 address in brackets, ``[fd00::1]:29400``."""


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port.

    Raises:
        ValueError: It is no ``host:port`` that can be reached.
    """
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdigit() or (":" in host and not host.startswith("[")):
        raise ValueError(f"{address!r}: expected host:port; an IPv6 address in brackets, such as [fd00::1]:29400")
    if int(port) > 65535:
        raise ValueError(f"{address!r}: a port is at most 65535")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of :func:`split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
