"""Hosts that have IPv6 only, hosts that know their own name by a loopback address, and ports that are taken."""

import logging
import socket
import threading

import pytest

from evenkeel.trainer_sdk.control.fleet.address import join_address, split_address
from evenkeel.trainer_sdk.control.fleet.own_host import host_towards
from evenkeel.trainer_sdk.groups.lifelines import Lifelines, is_reached
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


WITH_IPV6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("address", "host", "port"), [("a.b:1", "a.b", 1), ("10.0.0.1:2", "10.0.0.1", 2), ("[fd00::1]:3", "fd00::1", 3)]
)
def test_an_address_is_host_and_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize("address", ["a", ":1", "a:", "a:b", "fd00::1:29400"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split_address(address)


@WITH_IPV6
def test_lines_of_hosts_with_ipv6() -> None:
    ended = threading.Event()
    one, other = Lifelines("::1", lambda *_: ended.set()), Lifelines("::1", lambda *_: None)
    assert is_reached(other.address)
    one.hold({"other": other.address})
    other.close()
    assert ended.wait(30.0)
    one.close()
    assert host_towards("[::1]:1") == "::1"


@WITH_IPV6
def test_a_store_of_a_host_with_ipv6() -> None:
    keeper = StoreKeeper.of_this_host("job", ("[::1]:0",))
    assert keeper is not None
    socket.create_connection(split_address(keeper.address)).close()
    keeper.close_in_child(is_store=False)


def test_a_host_that_knows_its_name_by_a_loopback_address_has_its_store_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = socket.getaddrinfo
    names = {"here": "127.0.1.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **how: find(names.get(host, host), *rest, **how))
    keeper = StoreKeeper.of_this_host("job", ("here:0",))
    assert keeper is not None
    assert keeper.address.startswith("here:")
    assert keeper._listener.getsockname()[0] == "0.0.0.0"
    keeper.close_in_child(is_store=False)


def test_a_port_that_is_taken_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("evenkeel.launch"), "propagate", True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = join_address(*taken.getsockname())
        assert StoreKeeper.of_this_host("job", (address,)) is None
    assert f"no store is started at {address}" in caplog.text
