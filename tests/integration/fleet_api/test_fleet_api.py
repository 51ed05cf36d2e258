import asyncio
from collections.abc import Awaitable

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from sqlalchemy import text

from evenkeel.detector.v1 import detector_pb2
from evenkeel.history import reads
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.codec import layout_to_proto, model_to_proto
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from tests.integration.fleet_api.conftest import FLEET_TOKEN, Api, bearer
from tests.integration.history.seed import FULL, MODEL, START, layout_with, rank, seed, verdict

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

FLEET = bearer(FLEET_TOKEN)
JOB_TOKEN = "job-token-0123456789"


def register_request(job_id: str = "job-1", *, token: str = JOB_TOKEN) -> pb.RegisterJobRequest:
    return pb.RegisterJobRequest(
        job_id=job_id,
        name="A job",
        job_token=token,
        model=model_to_proto(MODEL),
        layout=layout_to_proto(FULL),
    )


def rank_request(job_id: str = "job-1", *, number: int = 0) -> pb.RegisterRanksRequest:
    process = pb.RankProcess(rank=number, node="node-a", device="gpu0", address="10.0.0.1:4000", process_id=7)
    return pb.RegisterRanksRequest(job_id=job_id, processes=[process])


async def refused(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def register(api: Api, job_id: str = "job-1") -> pb.Job:
    return (await api.stub.RegisterJob(register_request(job_id), metadata=FLEET)).job


async def test_a_registered_job_is_shown_and_durable(api: Api) -> None:
    job = await register(api)

    assert (job.job_id, job.tenant, job.epoch, job.state) == ("job-1", "default", 0, pb.JOB_STATE_RUNNING)
    assert MessageToDict(job.layout) == MessageToDict(layout_to_proto(FULL))
    async with api.engine.connect() as connection:
        known = await reads.get_job(connection, "job-1")
        assert known is not None
        assert await reads.job_token(connection, "job-1") == JOB_TOKEN
    assert known.layout == FULL


async def test_the_same_registration_twice_is_one_job(api: Api) -> None:
    assert await register(api) == await register(api)


async def test_another_layout_or_token_under_a_known_id_already_exists(api: Api) -> None:
    await register(api)
    other = register_request()
    other.layout.CopyFrom(layout_to_proto(layout_with(shares=(2, 1))))

    by_layout = await refused(api.stub.RegisterJob(other, metadata=FLEET))
    by_token = await refused(api.stub.RegisterJob(register_request(token="x" * 16), metadata=FLEET))

    assert by_layout.code() is by_token.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "another layout" in str(by_layout.details())
    assert "another token" in str(by_token.details())


async def test_a_layout_that_contradicts_itself_is_an_invalid_argument_with_the_numbers(api: Api) -> None:
    request = register_request()
    request.layout.replicas[1].stages[0].ranks[:] = [0, 1]

    error = await refused(api.stub.RegisterJob(request, metadata=FLEET))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ranks [0, 1] hold more than one position" in str(error.details())


async def test_a_call_without_a_token_is_unauthenticated(api: Api) -> None:
    for metadata in ((), (("authorization", "Basic abc"),), (("authorization", "Bearer "),)):
        error = await refused(api.stub.ListJobs(pb.ListJobsRequest(), metadata=metadata))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "Bearer" in str(error.details())


async def test_a_job_token_opens_its_own_job_and_nothing_else(api: Api) -> None:
    await register(api)
    await register(api, "job-2")
    own = bearer(JOB_TOKEN)

    await api.stub.RegisterRanks(rank_request(), metadata=own)
    await api.stub.ListIncidents(pb.ListIncidentsRequest(job_id="job-1"), metadata=own)
    await api.stub.ListPlans(pb.ListPlansRequest(job_id="job-1"), metadata=own)

    calls: list[Awaitable[object]] = [
        api.stub.RegisterJob(register_request("job-3"), metadata=own),
        api.stub.ListJobs(pb.ListJobsRequest(), metadata=own),
        api.stub.ListIncidents(pb.ListIncidentsRequest(), metadata=own),
        api.stub.ListPlans(pb.ListPlansRequest(), metadata=own),
        api.stub.ListVerdicts(pb.ListVerdictsRequest(), metadata=own),
        api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1"), metadata=bearer("y" * 20)),
        api.stub.RegisterRanks(rank_request("unknown"), metadata=own),
        api.stub.ExplainPlan(pb.ExplainPlanRequest(plan_id="unknown"), metadata=own),
    ]
    for call in calls:
        assert (await refused(call)).code() is grpc.StatusCode.PERMISSION_DENIED


async def test_two_jobs_with_two_tokens_are_closed_to_one_another(api: Api) -> None:
    await register(api)
    await api.stub.RegisterJob(register_request("job-2", token="z" * 20), metadata=FLEET)

    error = await refused(api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1"), metadata=bearer("z" * 20)))

    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert api.fleet.job("job-1") is not None


async def test_one_job_is_told_as_it_is_and_as_it_ended_and_its_own_token_opens_it(api: Api) -> None:
    await register(api)
    own = bearer(JOB_TOKEN)
    exits = [pb.RankExit(rank=0, code=1, last_line="KeyError: 'loss'")]

    await api.stub.ReportExits(pb.ReportExitsRequest(job_id="job-1", exits=exits), metadata=own)
    async with api.engine.connect() as connection:
        (known,) = await connection.execute(text("SELECT rank, code, last_line FROM rank_exits"))
    running = await api.stub.GetJob(pb.GetJobRequest(job_id="job-1"), metadata=own)
    await api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1", failure="KeyError: 'loss'"), metadata=own)
    ended = await api.stub.GetJob(pb.GetJobRequest(job_id="job-1"), metadata=own)

    assert (running.job.state, ended.job.state) == (pb.JOB_STATE_RUNNING, pb.JOB_STATE_FINISHED)
    assert ended.job.standing.summary == "failed: KeyError: 'loss'"
    assert tuple(known) == (0, 1, "KeyError: 'loss'")


async def test_a_page_of_huge_jobs_ends_before_grpc_refuses_it(api: Api) -> None:
    num_jobs, num_ranks = 8, 8192
    for number in range(num_jobs):
        await register(api, f"huge-{number}")
        processes = [
            pb.RankProcess(rank=rank, node=f"node-{rank // 8}", device="gpu0", address=f"10.0.0.1:{rank + 1000}")
            for rank in range(num_ranks)
        ]
        request = pb.RegisterRanksRequest(job_id=f"huge-{number}", processes=processes)
        await api.stub.RegisterRanks(request, metadata=FLEET)
        await api.stub.FinishJob(pb.FinishJobRequest(job_id=f"huge-{number}"), metadata=FLEET)

    jobs, token, num_pages = list[pb.Job](), "", 0
    while token or not num_pages:
        page = await api.stub.ListJobs(pb.ListJobsRequest(page_token=token), metadata=FLEET)
        jobs += page.jobs
        token, num_pages = page.next_page_token, num_pages + 1

    assert sorted(job.job_id for job in jobs) == [f"huge-{number}" for number in range(num_jobs)]
    assert {len(job.ranks) for job in jobs} == {num_ranks}
    assert num_pages > 1


async def test_what_is_unknown_is_not_found(api: Api) -> None:
    calls: list[Awaitable[object]] = [
        api.stub.GetJob(pb.GetJobRequest(job_id="nobody"), metadata=FLEET),
        api.stub.ReportExits(pb.ReportExitsRequest(job_id="nobody", exits=[pb.RankExit()]), metadata=FLEET),
        api.stub.RegisterRanks(rank_request("nobody"), metadata=FLEET),
        api.stub.FinishJob(pb.FinishJobRequest(job_id="nobody"), metadata=FLEET),
        api.stub.ListPlans(pb.ListPlansRequest(job_id="nobody"), metadata=FLEET),
        api.stub.ListVerdicts(pb.ListVerdictsRequest(job_id="nobody"), metadata=FLEET),
        api.stub.ExplainPlan(pb.ExplainPlanRequest(plan_id="nobody"), metadata=FLEET),
    ]
    for call in calls:
        error = await refused(call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert "'nobody'" in str(error.details())


async def test_a_forged_page_token_is_an_invalid_argument(api: Api) -> None:
    error = await refused(api.stub.ListJobs(pb.ListJobsRequest(page_token="forged"), metadata=FLEET))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "page_token" in str(error.details())


async def test_a_page_token_of_another_list_or_job_is_an_invalid_argument(api: Api) -> None:
    async with api.engine.begin() as connection:
        await seed(connection)
    token = (await api.stub.ListPlans(pb.ListPlansRequest(job_id="llama", page_size=1), metadata=FLEET)).next_page_token
    calls: list[Awaitable[object]] = [
        api.stub.ListJobs(pb.ListJobsRequest(page_token=token), metadata=FLEET),
        api.stub.ListIncidents(pb.ListIncidentsRequest(job_id="llama", page_token=token), metadata=FLEET),
        api.stub.ListVerdicts(pb.ListVerdictsRequest(job_id="llama", page_token=token), metadata=FLEET),
        api.stub.ListPlans(pb.ListPlansRequest(page_token=token), metadata=FLEET),
    ]
    for call in calls:
        error = await refused(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "page_token is of another list" in str(error.details())


async def test_lists_page_through_the_past_newest_first(api: Api) -> None:
    async with api.engine.begin() as connection:
        await seed(connection)
    plans: list[pb.Plan] = []
    token = ""
    while not plans or token:
        page = await api.stub.ListPlans(
            pb.ListPlansRequest(job_id="llama", page_size=2, page_token=token), metadata=FLEET
        )
        plans += page.plans
        token = page.next_page_token
    incidents = (await api.stub.ListIncidents(pb.ListIncidentsRequest(), metadata=FLEET)).incidents
    jobs = (await api.stub.ListJobs(pb.ListJobsRequest(), metadata=FLEET)).jobs

    assert [plan.plan_id for plan in plans] == ["p5", "p4", "p3", "p2", "p1"]
    assert (plans[4].state, plans[4].measured_seconds) == (pb.PLAN_STATE_MEASURED, 1.29)
    assert plans[0].first_iteration == -1
    verdicts = (await api.stub.ListVerdicts(pb.ListVerdictsRequest(job_id="llama"), metadata=FLEET)).verdicts

    assert {verdict.job_id for verdict in verdicts} == {"llama"}
    moments = [verdict.decided_at_unix_seconds for verdict in verdicts]
    assert len(moments) > 1
    assert moments == sorted(moments, reverse=True)
    assert [incident.incident_id for incident in incidents] == ["i4", "i3", "i2", "bert-i1", "i1"]
    assert incidents[0].kind == detector_pb2.VERDICT_KIND_HANG
    assert not incidents[0].HasField("resolved_at")
    assert list(incidents[4].plan_ids) == ["p1", "p2"]
    assert [(job.job_id, job.state) for job in jobs] == [
        ("llama", pb.JOB_STATE_STUCK),
        ("bert", pb.JOB_STATE_FINISHED),
    ]


async def test_a_plan_is_explained_with_its_incident(api: Api) -> None:
    async with api.engine.begin() as connection:
        await seed(connection)

    answer = await api.stub.ExplainPlan(pb.ExplainPlanRequest(plan_id="p1"), metadata=FLEET)

    assert (answer.plan.plan_id, answer.incident.incident_id) == ("p1", "i1")
    assert "rank 5 (gpu1 of node-b) is computing at 0.50 of healthy speed" in answer.text
    assert "3.2% slower than predicted" in answer.text


async def test_a_watcher_gets_the_state_first_then_what_happens_and_the_stream_ends_with_the_job(api: Api) -> None:
    await register(api)
    stream = api.stub.WatchJob(pb.WatchJobRequest(job_id="job-1"), metadata=bearer(JOB_TOKEN))

    first = await anext(aiter(stream))
    api.fleet.happen("job-1", verdict("v1", VerdictKind.HANG, rank("job-1", 3, START), START, 7, 0.0))
    second = await anext(aiter(stream))
    await api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1"), metadata=bearer(JOB_TOKEN))

    assert first.job.job_id == "job-1"
    assert (second.verdict.kind, second.verdict.culprits[0].rank) == (detector_pb2.VERDICT_KIND_HANG, 3)
    assert [message async for message in stream] == []
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_finished_job_is_watched_as_it_ended(api: Api) -> None:
    await register(api)
    await api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1"), metadata=FLEET)

    messages = [message async for message in api.stub.WatchJob(pb.WatchJobRequest(job_id="job-1"), metadata=FLEET)]

    assert [message.job.state for message in messages] == [pb.JOB_STATE_FINISHED]


async def test_a_watcher_that_hangs_up_leaves_no_stream_open(api: Api) -> None:
    await register(api)
    stream = api.stub.WatchJob(pb.WatchJobRequest(job_id="job-1"), metadata=FLEET)
    await anext(aiter(stream))
    assert api.registry.get_sample_value("evenkeel_fleet_api_streams") == 1

    stream.cancel()

    async with asyncio.timeout(60):
        while api.registry.get_sample_value("evenkeel_fleet_api_streams"):  # noqa: ASYNC110 - a gauge has no event
            await asyncio.sleep(0.01)


async def test_a_watch_of_an_unknown_job_is_not_found_and_of_a_foreign_one_refused(api: Api) -> None:
    await register(api)
    for job_id, metadata, code in (
        ("nobody", FLEET, grpc.StatusCode.NOT_FOUND),
        ("job-1", bearer("y" * 20), grpc.StatusCode.PERMISSION_DENIED),
        ("job-1", (), grpc.StatusCode.UNAUTHENTICATED),
    ):
        stream = api.stub.WatchJob(pb.WatchJobRequest(job_id=job_id), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stream))
        assert caught.value.code() is code


async def test_calls_are_counted_by_method_and_code(api: Api) -> None:
    await register(api)
    await refused(api.stub.ListJobs(pb.ListJobsRequest()))

    def count(method: str, code: str) -> float | None:
        return api.registry.get_sample_value("evenkeel_fleet_api_calls_total", {"method": method, "code": code})

    assert count("RegisterJob", "OK") == 1
    async with asyncio.timeout(60):  # a refusal is counted after it was sent
        while count("ListJobs", "UNAUTHENTICATED") != 1:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.01)


async def test_a_malformed_message_is_an_error_of_the_caller_and_the_server_goes_on(api: Api) -> None:
    raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = api.channel.unary_unary(
        "/evenkeel.scheduler.v1.FleetService/ListJobs"
    )

    error = await refused(raw(b"\xff\xff\xff", metadata=FLEET))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a request of ListJobs" in str(error.details())
    assert (await api.stub.ListJobs(pb.ListJobsRequest(), metadata=FLEET)).jobs == []


async def test_callers_that_gave_up_are_no_errors_of_ours(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(*_: str) -> None:
        await asyncio.Event().wait()

    await register(api)
    monkeypatch.setattr(api.fleet, "finish_job", never)
    calls = [
        api.stub.FinishJob(pb.FinishJobRequest(job_id="job-1"), metadata=FLEET, timeout=0.02 + number * 0.001)
        for number in range(100)
    ]

    ends = await asyncio.gather(*(refused(call) for call in calls))

    assert {error.code() for error in ends} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert (await api.stub.ListJobs(pb.ListJobsRequest(), metadata=FLEET)).jobs
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
