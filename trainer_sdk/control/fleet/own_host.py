"""By which address others reach this host."""

import socket

from evenkeel.trainer_sdk.control.fleet.address import split_address


def host_towards(addresses: str) -> str:
    """The address of this host's interface from which others are reached; asks nobody.

    Args:
        addresses: ``host:port`` of somebody, or several, comma-separated.

    Raises:
        OSError: There is no way to any of them.
    """
    error, found = OSError(f"no way to {addresses}"), ""
    for address in addresses.split(","):
        try:
            family, kind, *_, place = socket.getaddrinfo(*split_address(address), type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as line:
                line.connect(place)
                found = str(line.getsockname()[0])
        except OSError as why:
            error = OSError(f"no way to {address.strip()}: {why.strerror or why}")
            continue
        if not found.startswith("127."):  # a host may know itself, and nobody else, by a loopback address
            return found
    if not found:
        raise error
    return found
