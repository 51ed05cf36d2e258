"""``evenkeel launch JOB.json`` on each of two hosts, beside a scheduler that says what their ranks do."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from tests.integration.hosts.agents import PORT
from tests.integration.hosts.network import Network
from tests.integration.replicas.torchruns import ROOT, Output, children_of
from tests.integration.scheduler.test_service import FLEET_TOKEN, metadata

PATIENCE_SECONDS = 400.0


class EngineHosts(Output):
    """An agent on each of two hosts, of whose stores each has one.

    Args:
        network: The hosts.
        job: File of the job.
        settings: For the agents' environment.
    """

    def __init__(self, network: Network, job: Path, settings: dict[str, str]) -> None:
        super().__init__()
        self.network = network
        stores = ",".join(f"{network.address(each)}:{PORT}" for each in (0, 1))
        self._command = [sys.executable, "-m", "evenkeel.trainer_sdk.launcher.agent", "--nnodes", "2"]
        self._command += ["--nproc-per-node", "2", "--rdzv-endpoint", stores]
        self._job, self._settings = job, settings
        self._agents: dict[int, subprocess.Popen[str]] = {}
        for host in (0, 1):
            self.start(host)

    def start(self, host: int) -> None:
        self._agents[host] = subprocess.Popen(
            [*self._command, "--node-rank", str(host), str(self._job)],
            env={**os.environ, **self._settings},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: self.network.enter(host),  # noqa: PLW1509 - nothing else runs in this process then
        )
        output = self._agents[host].stdout
        assert output is not None
        self.read(output)

    def kill_host(self, host: int) -> None:
        """Its power is gone: nobody says a word."""
        self.network.unplug(host)
        (zygote,) = children_of(self._agents[host].pid)
        for pid in (*children_of(zygote), zygote):
            os.kill(pid, signal.SIGKILL)
        self.kill_agent(host)

    def kill_agent(self, host: int) -> None:
        self._agents[host].kill()
        self._agents[host].wait()

    def close(self) -> None:
        for each in self._agents.values():
            each.terminate()
        for each in self._agents.values():
            each.wait(60)
        self.join()


class Watch:
    """What the scheduler says of their job."""

    def __init__(self, channel: grpc.aio.Channel, job_id: str, hosts: EngineHosts) -> None:
        self._stub, self._job_id, self._hosts = scheduler_pb2_grpc.FleetServiceStub(channel), job_id, hosts

    async def job(self) -> pb.Job:
        """As it is now; an empty one while nobody knows it."""
        request = pb.GetJobRequest(job_id=self._job_id)
        try:
            return (await self._stub.GetJob(request, metadata=metadata(FLEET_TOKEN), timeout=30)).job
        except grpc.RpcError:
            return pb.Job()

    async def lost(self) -> list[int]:
        """Ranks of all incidents."""
        request = pb.ListIncidentsRequest(job_id=self._job_id)
        found = await self._stub.ListIncidents(request, metadata=metadata(FLEET_TOKEN), timeout=30)
        return sorted(one.rank for incident in found.incidents for one in incident.culprits)

    async def until_training(self, *ranks: int, beyond: int = -1) -> pb.Job:
        """These, and nobody else, train in an epoch beyond that one."""
        return await self._until(lambda job: job.epoch > beyond and tuple(job.standing.training) == ranks, f"{ranks}")

    async def until_joining(self, *ranks: int) -> pb.Job:
        """These have new processes."""
        return await self._until(lambda job: tuple(job.standing.joining) == ranks, f"{ranks}")

    async def _until(self, holds: Callable[[pb.Job], bool], who: str) -> pb.Job:
        job = pb.Job()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds(job := await self.job()):  # noqa: ASYNC110 - a scheduler is asked
                    await asyncio.sleep(0.5)
        except TimeoutError:
            said = "".join(self._hosts.output[-60:])
            raise AssertionError(f"{who} do not come: {job.epoch} {job.problem} {job.standing}\n{said}") from None
        return job
