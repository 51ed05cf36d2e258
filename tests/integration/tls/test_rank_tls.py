"""TLS between the scheduler's client and a rank's controller, with real certificates; and whom neither talks to."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls
from evenkeel.services.scheduler.adapters.ranks.watch import watch_rank
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError, RankRefusedError
from evenkeel.services.scheduler.leadership import Alone
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.tls import ControllerTls
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings
from tests.integration.tls.conftest import Authority

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

TOKEN = "a-token-of-this-job"
SECONDS = 60.0

Serve = Callable[[ControllerTls | None], ControlServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(tls: ControllerTls | None) -> ControlServer:
        server = ControlServer(Mailbox(rank=0), job_id="job", job_token=TOKEN, tls=tls)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def controller(authority: Authority, *, asks: Authority | None = None, names: str = "IP:127.0.0.1") -> ControllerTls:
    certificate, key = authority.sign("rank", names)
    return ControllerTls(certificate=certificate, key=key, scheduler_ca_file=None if asks is None else asks.ca_file)


def scheduler(trusts: Authority, *, shows: Authority | None = None, name: str = "") -> RankTls:
    chain = key = None
    if shows is not None:
        chain, key = (path.read_bytes() for path in shows.sign("scheduler"))
    return RankTls(certificates=trusts.ca_file.read_bytes(), name=name, chain=chain, key=key)


async def phase(server: ControlServer, tls: RankTls | None) -> str:
    client = RankClient(
        job_id="job",
        job_token=TOKEN,
        rank=0,
        incarnation=0,
        address=f"127.0.0.1:{server.port}",
        leadership=Alone(),
        tls=tls,
    )
    try:
        return (await client.status(SECONDS)).phase.name
    finally:
        await client.close()


async def test_the_scheduler_reaches_a_rank_over_tls(serve: Serve, ours: Authority) -> None:
    assert await phase(serve(controller(ours)), scheduler(ours)) == "JOINING"


async def test_with_mutual_tls_both_sides_show_certificates(serve: Serve, ours: Authority, theirs: Authority) -> None:
    server = serve(controller(ours, asks=theirs))
    assert await phase(server, scheduler(ours, shows=theirs)) == "JOINING"
    with pytest.raises(RankAwayError):
        await phase(server, scheduler(ours))
    with pytest.raises(RankAwayError):
        await phase(server, scheduler(ours, shows=ours))


async def test_one_certificate_may_serve_ranks_on_any_host_under_one_name(serve: Serve, ours: Authority) -> None:
    server = serve(controller(ours, names="DNS:ranks.example.org"))
    assert await phase(server, scheduler(ours, name="ranks.example.org")) == "JOINING"
    with pytest.raises(RankRefusedError, match=r"for another name.*EVENKEEL_RANK_TLS_NAME"):
        await phase(server, scheduler(ours))


async def test_a_rank_whose_certificate_somebody_else_signed_is_refused_and_not_called_dead(
    serve: Serve, ours: Authority, theirs: Authority
) -> None:
    with pytest.raises(RankRefusedError, match="not signed by one of EVENKEEL_RANK_CA_FILE"):
        await phase(serve(controller(theirs)), scheduler(ours))


async def test_a_rank_without_tls_is_refused_by_a_scheduler_with_it(serve: Serve, ours: Authority) -> None:
    with pytest.raises(RankRefusedError, match="does not speak TLS: give the job EVENKEEL_RANK_CERTIFICATE"):
        await phase(serve(None), scheduler(ours))


async def test_a_rank_with_tls_answers_nobody_without(serve: Serve, ours: Authority) -> None:
    with pytest.raises(RankAwayError):
        await phase(serve(controller(ours)), None)


async def test_a_stream_is_held_over_mutual_tls(serve: Serve, ours: Authority) -> None:
    server = serve(controller(ours, asks=ours))
    client = RankClient(
        job_id="job",
        job_token=TOKEN,
        rank=0,
        incarnation=0,
        address=f"127.0.0.1:{server.port}",
        leadership=Alone(),
        tls=scheduler(ours, shows=ours),
    )
    async for state in client.watch():
        assert state.rank == 0
        assert server.num_watches == 1
        break
    await client.close()


async def test_a_rank_that_cannot_be_trusted_is_said_once_and_never_reported_as_broken(
    serve: Serve, ours: Authority, theirs: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(controller(theirs))
    client = RankClient(
        job_id="job",
        job_token=TOKEN,
        rank=0,
        incarnation=0,
        address=f"127.0.0.1:{server.port}",
        leadership=Alone(),
        tls=scheduler(ours),
    )
    broken: list[str] = []
    said = ""

    def report(rank: int, incarnation: int, detail: str) -> None:
        broken.append(detail)

    watching = asyncio.create_task(watch_rank(client, StateBoard(), report))
    async with asyncio.timeout(60):
        while "no stream to rank" not in said:
            await asyncio.wait([watching], timeout=0.05)
            said += capsys.readouterr().out
    await asyncio.wait([watching], timeout=2.0)  # some attempts more, of which nothing may come
    assert not watching.done()
    watching.cancel()
    await asyncio.wait([watching])
    await client.close()
    assert not broken
    assert (said + capsys.readouterr().out).count("no stream to rank") == 1


async def test_certificates_are_read_from_settings_files(ours: Authority) -> None:
    certificate, key = ours.sign("rank")
    environment = {
        "EVENKEEL_RANK_CERTIFICATE": str(certificate),
        "EVENKEEL_RANK_KEY": str(key),
        "EVENKEEL_SCHEDULER_CA_FILE": str(ours.ca_file),
    }
    tls = ServiceSettings.from_environment(environment).tls()
    assert tls == ControllerTls(certificate=certificate, key=key, scheduler_ca_file=ours.ca_file)
    assert ServiceSettings().tls() is None
