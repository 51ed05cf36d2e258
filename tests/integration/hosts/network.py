"""Several hosts on this machine: network namespaces that a switch, another one, connects. Linux, as root."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from typing import NoReturn

_CLONE_NEWNET = 0x40000000
_BARELY_ANYTHING = ("tbf", "rate", "8bit", "burst", "10", "limit", "10")


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        probe = f"ek-{os.getpid()}-probe"
        subprocess.run(["ip", "netns", "add", probe], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "delete", probe], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces: {error}"
    return ""


class Network:
    """Hosts 0, 1, ...; each reaches the others by its one interface.

    Args:
        num_hosts: How many.
    """

    def __init__(self, num_hosts: int) -> None:
        self._name = f"ek-{os.getpid()}-{id(self) % 1000}"
        self._subnet = os.getpid() % 250  # others may run beside this one
        self._names = [f"{self._name}-{each}" for each in range(num_hosts)]
        self._switch = f"{self._name}-switch"
        self.pids: dict[int, list[int]] = {each: [] for each in range(num_hosts)}
        for name in (*self._names, self._switch):
            _ip("netns", "add", name)
        self._on_switch("link", "add", "bridge", "type", "bridge")
        self._on_switch("link", "set", "bridge", "up")
        for host, name in enumerate(self._names):
            port = f"port{host}"
            _ip("link", "add", port, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            self._on_switch("link", "set", port, "master", "bridge")
            self._on_switch("link", "set", port, "up")

    def address(self, host: int) -> str:
        """Of a host's interface."""
        return f"10.77.{self._subnet}.{host + 1}"

    def join(self) -> str:
        """This process's own namespace is at the switch too, under that address; until the network is closed."""
        port, address = f"ek{os.getpid()}", f"10.77.{self._subnet}.254"
        _ip("link", "add", port, "type", "veth", "peer", "name", "outside", "netns", self._switch)
        _ip("address", "add", f"{address}/24", "dev", port)
        _ip("link", "set", port, "up")
        self._on_switch("link", "set", "outside", "master", "bridge")
        self._on_switch("link", "set", "outside", "up")
        return address

    def enter(self, host: int) -> None:
        """This thread, and what it starts, is on a host from now on."""
        with open(f"/var/run/netns/{self._names[host]}", "rb") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) == 0, ctypes.get_errno()

    def fork(self, host: int, body: Callable[[], None]) -> int:
        """A process on a host: its id."""
        pid = os.fork()
        if pid == 0:
            self._run(host, body)
        self.pids[host].append(pid)
        return pid

    def unplug(self, host: int) -> None:
        """Nothing goes to a host or comes from it."""
        self._on_switch("link", "set", f"port{host}", "down")

    def plug(self, host: int) -> None:
        """The cable is in its place again."""
        self._on_switch("link", "set", f"port{host}", "up")

    def deafen(self, host: int) -> None:
        """Nothing comes to a host; what it says is heard."""
        self._shape(host, "add", *_BARELY_ANYTHING)

    def undo_deafen(self, host: int) -> None:
        """It hears again."""
        self._shape(host, "delete")

    def part(self, one: int, other: int) -> None:
        """Two hosts do not reach each other; all others reach both."""
        self._route("add", one, other)

    def undo_part(self, one: int, other: int) -> None:
        """They do again."""
        self._route("delete", one, other)

    def close(self) -> None:
        """Nothing is left."""
        for name in (*self._names, self._switch):
            _ip("netns", "delete", name)

    def _route(self, verb: str, one: int, other: int) -> None:
        for here, there in ((one, other), (other, one)):
            _ip("-n", self._names[here], "route", verb, "blackhole", f"{self.address(there)}/32")

    def _shape(self, host: int, *words: str) -> None:
        verb, *how = words
        command = ["tc", "-n", self._switch, "qdisc", verb, "dev", f"port{host}", "root", *how]
        subprocess.run(command, check=True, capture_output=True)

    def _on_switch(self, *words: str) -> None:
        _ip("-n", self._switch, *words)

    def _run(self, host: int, body: Callable[[], None]) -> NoReturn:
        try:
            self.enter(host)
            body()
        finally:
            os._exit(0)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
