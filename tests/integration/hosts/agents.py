"""``evenkeel launch`` on each of several hosts."""

import os
import signal
import sys

from evenkeel.trainer_sdk.launcher.agent.__main__ import main
from tests.integration.hosts.network import Network
from tests.integration.replicas.torchruns import Output

PORT = 29400


class Agents(Output):
    """An agent on each host, of whose stores each has one.

    Args:
        network: The hosts.
        per_host: Ranks of each.
        script: What they run, and its arguments.
    """

    def __init__(self, network: Network, per_host: int, *script: str) -> None:
        super().__init__()
        self._network = network
        hosts = range(len(network.pids))
        stores = ",".join(f"{network.address(each)}:{PORT}" for each in hosts)
        self._arguments = ["--nnodes", str(len(hosts)), "--nproc-per-node", str(per_host), "--rdzv-endpoint", stores]
        self._script = script
        self.pids: dict[int, int] = {}
        for host in hosts:
            self.start(host)

    def start(self, host: int) -> None:
        """Also one that was there before."""
        reader, writer = os.pipe()

        def run() -> None:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - not pytest's
            sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            os._exit(main([*self._arguments, "--node-rank", str(host), *self._script]))

        self.pids[host] = self._network.fork(host, run)
        os.close(writer)
        self.read(open(reader))  # noqa: SIM115 - its reader closes it

    def kill(self, host: int) -> None:
        """An agent alone, with nobody's help."""
        os.kill(self.pids[host], signal.SIGKILL)
        self.wait(host)

    def wait(self, host: int) -> int:
        """Its exit status."""
        pid = self.pids.pop(host)
        self._network.pids[host].remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        for host in list(self.pids):
            self.kill(host)
        self.join()
        self._network.close()
