"""``evenkeel launch JOB.json``: the engine's ranks on two hosts beside a real scheduler; a host dies, then an agent."""

import json
import uuid
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
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


def job_file(folder: Path, job_id: str) -> Path:
    """Two replicas of two stages each, a replica on a host, for longer than the test takes."""
    job = json.loads((ROOT / "examples" / "gpt.json").read_text())
    job["layout"] |= {"tensor": 1, "pipeline": 2, "data": 2}
    job["config"]["num_iterations"] = 1_000_000
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "job_id": job_id, "run_dir": str(folder / "run")}))
    return path


def verdict(job_id: str, *ranks: int, rejoined: bool = False) -> detector_pb2.Verdict:
    """As the detector, which is not here, says it: of first processes that are dead, of second ones that are there."""
    said = death(job_id, ranks[0])
    said.culprits.extend(death(job_id, rank).culprits[0] for rank in ranks[1:])
    if rejoined:
        said.kind = detector_pb2.VERDICT_KIND_REJOINED
        for culprit in said.culprits:
            culprit.incarnation = 1
    return said


async def test_an_engine_over_two_hosts_outlives_a_host_and_an_agent(
    kafka_bootstrap: str, fresh_database_url: str, tmp_path: Path
) -> None:
    job_id, network = f"hosts-{uuid.uuid4().hex[:8]}", Network(2)
    here = network.join()
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path, EVENKEEL_FLEET_ADDRESS="0.0.0.0:0") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        settings = {
            "EVENKEEL_FLEET_ADDRESS": f"{here}:{port}",
            "EVENKEEL_FLEET_TOKEN": FLEET_TOKEN,
            "EVENKEEL_JOB_TOKEN": "a-token-of-this-job",
        }
        hosts = EngineHosts(network, job_file(tmp_path, job_id), settings)
        watch = Watch(channel, job_id, hosts)
        try:
            job = await watch.until_training(0, 1, 2, 3)
            addresses = {rank.rank: rank.address.rpartition(":")[0] for rank in job.ranks}
            assert addresses == {rank: network.address(rank // 2) for rank in range(4)}
            hosts.kill_host(1)
            # Nothing tells its peers, who wait; the detector finds that nobody hears of its ranks.
            await send(kafka_bootstrap, VERDICTS.name, job_id, verdict(job_id, 2, 3))
            job = await watch.until_training(0, 1, beyond=job.epoch)
            assert await watch.incidents() == [[2, 3]]
            network.plug(1)
            hosts.start(1)
            await watch.until_joining(2, 3)
            await send(kafka_bootstrap, VERDICTS.name, job_id, verdict(job_id, 2, 3, rejoined=True))
            job = await watch.until_training(0, 1, 2, 3, beyond=job.epoch)
            hosts.kill_agent(0)
            job = await watch.until_training(2, 3, beyond=job.epoch)
            hosts.start(0)
            await watch.until_joining(0, 1)
            await send(kafka_bootstrap, VERDICTS.name, job_id, verdict(job_id, 0, 1, rejoined=True))
            job = await watch.until_training(0, 1, 2, 3, beyond=job.epoch)
            assert {(rank.rank, rank.incarnation) for rank in job.ranks} == {(rank, 1) for rank in range(4)}
        finally:
            hosts.close()
            network.close()
