"""Replicas on several hosts, each of which has a store as a torchrun there would."""

import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed import TCPStore

from evenkeel.trainer_sdk.replicas import Place
from tests.integration.hosts.network import Network
from tests.integration.replicas.crew import Crew, Fate

STORE_PORT = 29400


class HostStores:
    """A store on each of some hosts.

    Args:
        network: The hosts.
        hosts: Which have one.
    """

    def __init__(self, network: Network, hosts: Sequence[int]) -> None:
        self.address = ",".join(f"{network.address(each)}:{STORE_PORT}" for each in hosts)
        for host in hosts:
            network.fork(host, _host_store)

    def close(self) -> None:
        """They end with their hosts."""


def _host_store() -> None:
    store = TCPStore("0.0.0.0", STORE_PORT, is_master=True, wait_for_workers=False, timeout=timedelta(days=1))
    while True:
        time.sleep(3600)
        assert store


class HostCrew(Crew):
    """A job with as many replicas on each host.

    Args:
        network: The hosts.
        stores: Hosts that have a store.
        per_host: Replicas of each host.
    """

    def __init__(self, network: Network, stores: Sequence[int], per_host: int = 2, **options: Any) -> None:
        self.network = network
        self.per_host = per_host
        super().__init__(per_host * len(network.pids), store=HostStores(network, stores), **options)

    def replicas_of(self, host: int) -> range:
        return range(self.per_host * host, self.per_host * (host + 1))

    def end_host(self, host: int) -> None:
        """Its power is gone: nobody says a word."""
        self.network.unplug(host)
        for replica in self.replicas_of(host):
            os.kill(self.pids[replica], signal.SIGKILL)
        self._end(host)

    def close(self) -> None:
        super().close()
        for host in self.network.pids:
            self._end(host)
        self.network.close()

    def _end(self, host: int) -> None:
        for pid in self.network.pids[host]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.network.pids[host] = []

    def _run(self, place: Place, fate: Fate | None, writer: Connection) -> int:
        self.network.enter(place.replica // self.per_host)
        return super()._run(place, fate, writer)
