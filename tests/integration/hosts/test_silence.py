"""Stores of hosts that say nothing any more."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.store.silence import SILENCE_SECONDS
from tests.integration.hosts.host_crew import HostStores
from tests.integration.hosts.network import Network, why_not

pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def network() -> Iterator[Network]:
    found = Network(3)
    yield found
    for pid in [each for pids in found.pids.values() for each in pids]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    found.close()


def test_a_question_asked_during_a_silence_is_answered_once_that_is_noticed(network: Network) -> None:
    stores = HostStores(network, (1, 2))
    reader, writer = os.pipe()

    def asks() -> None:
        rendezvous = Rendezvous(stores.address, "job")
        rendezvous.announce("said/0", True)
        rendezvous.read("said", [0])
        os.write(writer, b"cut me off")
        time.sleep(SILENCE_SECONDS - 0.5)
        begun = time.monotonic()
        is_heard = rendezvous.heard("said/0")
        os.write(writer, f"{is_heard} {time.monotonic() - begun}".encode())

    network.fork(0, asks)
    os.read(reader, 100)
    network.unplug(1)
    is_heard, seconds = os.read(reader, 100).decode().split()
    assert is_heard == "True"
    assert float(seconds) < SILENCE_SECONDS - 1.5, "not after a silence of its own"
