"""The scheduler as a process, TLS everywhere: ranks register, a death is planned for, and the plan is applied."""

import asyncio
import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.cli.fleet.client import FleetClient
from evenkeel.contracts.topics import PROFILES, VERDICTS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc
from evenkeel.trainer_sdk.control.fleet.access import FleetAccess
from evenkeel.trainer_sdk.control.fleet.registration import Registration
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.tls import ControllerTls
from tests.integration.scheduler.conftest import HOME
from tests.integration.scheduler.test_service import (
    FLEET_TOKEN,
    death,
    metadata,
    send,
    service,
    until_in_charge,
    until_without,
)
from tests.integration.scheduler.toy_job import ToyJob, ToyRank
from tests.integration.tls.conftest import Authority

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

SECONDS = 60.0
VICTIM = 3


@pytest.fixture
def settings(ours: Authority, theirs: Authority) -> dict[str, str]:
    """Ranks' certificates are ours to sign, the scheduler's are theirs."""
    names = ("EVENKEEL_TLS_CERTIFICATE", "EVENKEEL_TLS_KEY", "EVENKEEL_SCHEDULER_CERTIFICATE", "EVENKEEL_SCHEDULER_KEY")
    files = dict(zip(names, (*theirs.sign("fleet"), *theirs.sign("scheduler")), strict=True))
    return {name: str(path) for name, path in files.items()} | {"EVENKEEL_RANK_CA_FILE": str(ours.ca_file)}


@pytest.fixture
def toys(ours: Authority, theirs: Authority) -> Iterator[ToyJob]:
    certificate, key = ours.sign("ranks")
    tls = ControllerTls(certificate=certificate, key=key, scheduler_ca_file=theirs.ca_file)
    job = ToyJob(f"toy-{uuid.uuid4().hex[:8]}", HOME, tls=tls)
    job.start()
    yield job
    job.stop()


def registration(toy: ToyRank, server: ControlServer, port: int, ca_file: Path) -> Registration:
    return Registration(
        FleetAccess(address=f"localhost:{port}", ca_file=str(ca_file), job_id=toy.job.job_id, job_token=toy.job.token),
        pb.RankProcess(
            rank=toy.rank,
            node="node-0",
            device=f"gpu-{toy.rank}",
            address=server.address(),
            process_id=os.getpid(),
            controller_security=server.security,
        ),
        is_watched=lambda: server.num_watches > 0,
    )


async def test_a_plan_is_applied_over_mutual_tls(
    kafka_bootstrap: str,
    fresh_database_url: str,
    toys: ToyJob,
    settings: dict[str, str],
    theirs: Authority,
    tmp_path: Path,
) -> None:
    credentials = grpc.ssl_channel_credentials(theirs.ca_file.read_bytes())
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path, **settings) as (_, port),
        grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        await until_in_charge(channel)
        stub = scheduler_pb2_grpc.FleetServiceStub(channel)
        await stub.RegisterJob(job_of(toys), metadata=metadata(FLEET_TOKEN), timeout=SECONDS)
        ranks = [registration(toy, toy.server, port, theirs.ca_file) for toy in toys.ranks.values()]
        for rank in ranks:
            rank.start()
        async with asyncio.timeout(SECONDS):
            while not all(toy.server.num_watches for toy in toys.ranks.values()):  # noqa: ASYNC110 - a number
                await asyncio.sleep(0.02)
        await send(kafka_bootstrap, PROFILES.name, toys.job_id, profile_of(toys))
        toys.ranks[VICTIM].kill()
        await send(kafka_bootstrap, VERDICTS.name, toys.job_id, death(toys.job_id, VICTIM))
        assert (await until_without(stub, toys, VICTIM)).epoch == 1
        client = FleetClient(f"localhost:{port}", FLEET_TOKEN, str(theirs.ca_file))
        assert [plan.epoch for plan in client.plans(toys.job_id)] == [1]
        client.close()
        for rank in ranks:
            rank.stop()


async def test_a_rank_without_tls_is_refused_and_says_which_setting_is_missing(
    kafka_bootstrap: str,
    fresh_database_url: str,
    toys: ToyJob,
    settings: dict[str, str],
    theirs: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    credentials = grpc.ssl_channel_credentials(theirs.ca_file.read_bytes())
    plain = ControlServer(toys.ranks[0].mailbox, job_id=toys.job_id, job_token=toys.token)
    plain.start()
    async with (
        service(kafka_bootstrap, fresh_database_url, tmp_path, **settings) as (_, port),
        grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        await until_in_charge(channel)
        stub = scheduler_pb2_grpc.FleetServiceStub(channel)
        await stub.RegisterJob(job_of(toys), metadata=metadata(FLEET_TOKEN), timeout=SECONDS)
        rank = registration(toys.ranks[0], plain, port, theirs.ca_file)
        with caplog.at_level(logging.WARNING, "evenkeel.control"):
            rank.start()
            async with asyncio.timeout(SECONDS):
                # A call that a busy scheduler answers too late is told too.
                while not any("FAILED_PRECONDITION" in one for one in caplog.messages):  # noqa: ASYNC110 - a log has no event to wait for
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            assert not plain.num_watches
            rank.stop()
    plain.stop()
    (said,) = [one for one in caplog.messages if "FAILED_PRECONDITION" in one]
    assert "give the job EVENKEEL_RANK_CERTIFICATE and EVENKEEL_RANK_KEY" in said


def job_of(toys: ToyJob) -> pb.RegisterJobRequest:
    return pb.RegisterJobRequest(
        job_id=toys.job_id,
        name="toy",
        job_token=toys.token,
        model=model_to_proto(gpt(6)),
        layout=layout_to_proto(HOME),
    )


def profile_of(toys: ToyJob) -> detector_pb2.Profile:
    return detector_pb2.Profile(
        job_id=toys.job_id, iteration=5, seconds_per_flop=2e-10, tokens=1024, sum_of_squares=1e5
    )
