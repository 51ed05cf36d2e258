"""``evenkeel launch JOB.json``: the engine's ranks on two hosts beside a real scheduler; hosts die, agents, cables."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from evenkeel.contracts.topics import VERDICTS
from evenkeel.detector.v1 import detector_pb2
from tests.integration.hosts.engine_hosts import EngineHosts, Watch
from tests.integration.hosts.network import Network, why_not
from tests.integration.replicas.torchruns import ROOT
from tests.integration.scheduler.test_service import FLEET_TOKEN, death, send, service

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


def job_file(folder: Path, job_id: str) -> Path:
    """Two replicas of two stages each, a replica on a host, for longer than the test takes.

    On devices that take 0.4 s for an iteration: the processors are for those that die and come back meanwhile.
    """
    job = json.loads((ROOT / "examples" / "gpt.json").read_text())
    job |= {"device_kind": "emulated", "flops_per_second": 2e8}
    job["layout"] |= {"tensor": 1, "pipeline": 2, "data": 2}
    job["config"]["num_iterations"] = 1_000_000
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "job_id": job_id, "run_dir": str(folder / "run")}))
    return path


def rejoined(job_id: str, *ranks: int, incarnation: int) -> detector_pb2.Verdict:
    """As the detector, which is not here, says it of processes that it hears of, or hears again."""
    said = death(job_id, ranks[0])
    said.culprits.extend(death(job_id, rank).culprits[0] for rank in ranks[1:])
    said.kind = detector_pb2.VERDICT_KIND_REJOINED
    for culprit in said.culprits:
        culprit.incarnation = incarnation
    return said


@asynccontextmanager
async def two_hosts(kafka: str, database_url: str, folder: Path) -> AsyncIterator[tuple[EngineHosts, Watch]]:
    """Both, and what the scheduler says of their job, which runs when this begins."""
    job_id, network = f"hosts-{uuid.uuid4().hex[:8]}", Network(2)
    here = network.join()
    async with (
        service(kafka, database_url, folder, EVENKEEL_FLEET_ADDRESS="0.0.0.0:0") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        settings = {
            "EVENKEEL_FLEET_ADDRESS": f"{here}:{port}",
            "EVENKEEL_FLEET_TOKEN": FLEET_TOKEN,
            "EVENKEEL_JOB_TOKEN": "a-token-of-this-job",
        }
        hosts = EngineHosts(network, job_file(folder, job_id), settings)
        try:
            yield hosts, Watch(channel, job_id, hosts)
        finally:
            hosts.close()
            network.close()


async def test_an_engine_over_two_hosts_outlives_a_host_an_agent_and_a_cut_cable(
    kafka_bootstrap: str, fresh_database_url: str, tmp_path: Path
) -> None:
    async def send_rejoined(*ranks: int) -> None:
        await send(kafka_bootstrap, VERDICTS.name, job.job_id, rejoined(job.job_id, *ranks, incarnation=1))

    async with two_hosts(kafka_bootstrap, fresh_database_url, tmp_path) as (hosts, watch):
        job = await watch.until_training(0, 1, 2, 3)
        addresses = {rank.rank: rank.address.rpartition(":")[0] for rank in job.ranks}
        assert addresses == {rank: hosts.network.address(rank // 2) for rank in range(4)}
        hosts.network.unplug(1)
        await asyncio.sleep(1.0)
        hosts.network.plug(1)
        assert (await watch.until_training(0, 1, 2, 3)).epoch == job.epoch

        hosts.kill_host(1)
        # No detector is there: its peers' lines to it end, they park, and the scheduler's own streams break.
        job = await watch.until_training(0, 1, beyond=job.epoch)
        assert await watch.lost() == [2, 3]
        hosts.network.plug(1)
        hosts.start(1)
        await watch.until_joining(2, 3)
        await send_rejoined(2, 3)
        job = await watch.until_training(0, 1, 2, 3, beyond=job.epoch)

        hosts.kill_agent(0)
        job = await watch.until_training(2, 3, beyond=job.epoch)
        hosts.start(0)
        await watch.until_joining(0, 1)
        await send_rejoined(0, 1)
        job = await watch.until_training(0, 1, 2, 3, beyond=job.epoch)
        assert {(rank.rank, rank.incarnation) for rank in job.ranks} == {(rank, 1) for rank in range(4)}
        before = await watch.lost()

        hosts.network.unplug(1)
        job = await watch.until_training(0, 1, beyond=job.epoch)
        assert await watch.lost() == sorted([*before, 2, 3])
        hosts.network.plug(1)
        # They say so themselves, as nobody watches them: no detector is there to hear them.
        job = await watch.until_training(0, 1, 2, 3, beyond=job.epoch)
        assert {(rank.rank, rank.incarnation) for rank in job.ranks} == {(rank, 1) for rank in range(4)}
