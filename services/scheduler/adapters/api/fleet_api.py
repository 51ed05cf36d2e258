# ruff: noqa: N802 - methods are called as in the contract
"""The fleet's gRPC API: checks requests, asks the coordinator and the history, translates. Nothing is decided here.

Who may call, status codes, deadlines, logs and metrics are the interceptor's
(:mod:`evenkeel.services.scheduler.adapters.api.interceptor`). Runs on the service's one event loop.
"""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from evenkeel.history import reads
from evenkeel.history.errors import UnknownJobError, UnknownPlanError
from evenkeel.history.records import JobStatus, VerdictRecord
from evenkeel.layouts.codec import M
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from evenkeel.services.scheduler.adapters.api import codec, requests
from evenkeel.services.scheduler.adapters.api.explanation import explain_plan
from evenkeel.services.scheduler.adapters.api.pages import page_of_messages
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls, check_security
from evenkeel.services.scheduler.adapters.store.store import Store
from evenkeel.services.scheduler.serving.coordinator import Coordinator
from evenkeel.services.scheduler.serving.news import JobNews, JobView


def _now() -> datetime:
    return datetime.now(UTC)


class FleetApi(pb_grpc.FleetServiceServicer):
    """Servicer of ``evenkeel.scheduler.v1.FleetService``. Methods raise; the interceptor makes statuses of it."""

    def __init__(self, fleet: Coordinator, history: Store, rank_tls: RankTls | None = None) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            fleet: The coordinator: what is.
            history: What was.
            rank_tls: How the scheduler talks to ranks; others are refused.
        """
        self._fleet = fleet
        self._history = history
        self._rank_tls = rank_tls

    async def RegisterJob(self, request: pb.RegisterJobRequest, context: object) -> pb.RegisterJobResponse:
        """See the contract."""
        requests.check_register_job(request)
        job = await self._fleet.register_job(codec.job_from_request(request, _now()))
        return pb.RegisterJobResponse(job=codec.job_to_proto(job))

    async def RegisterRanks(self, request: pb.RegisterRanksRequest, context: object) -> pb.RegisterRanksResponse:
        """See the contract."""
        requests.check_register_ranks(request)
        for process in request.processes:
            check_security(process.controller_security, self._rank_tls)
        term = await self._fleet.register_ranks(request.job_id, codec.ranks_from_request(request, _now()))
        return pb.RegisterRanksResponse(term=term)

    async def ReportExits(self, request: pb.ReportExitsRequest, context: object) -> pb.ReportExitsResponse:
        """See the contract."""
        requests.check_report_exits(request)
        await self._fleet.report_exits(request.job_id, codec.exits_from_request(request, _now()))
        return pb.ReportExitsResponse()

    async def FinishJob(self, request: pb.FinishJobRequest, context: object) -> pb.FinishJobResponse:
        """See the contract."""
        requests.check_name("job_id", request.job_id)
        requests.check_line("failure", request.failure)
        await self._fleet.finish_job(request.job_id, request.failure)
        return pb.FinishJobResponse()

    async def GetJob(self, request: pb.GetJobRequest, context: object) -> pb.GetJobResponse:
        """See the contract."""
        requests.check_name("job_id", request.job_id)
        return pb.GetJobResponse(job=await self._job(request.job_id))

    async def WatchJob(self, request: pb.WatchJobRequest, context: object) -> AsyncIterator[pb.WatchJobResponse]:
        """See the contract. A finished job is shown as it ended, and that is all."""
        requests.check_name("job_id", request.job_id)
        if self._fleet.job(request.job_id) is None:
            yield pb.WatchJobResponse(job=await self._job(request.job_id))
            return
        async for news in self._fleet.watch(request.job_id):
            yield _news_to_proto(news)

    async def ListJobs(self, request: pb.ListJobsRequest, context: object) -> pb.ListJobsResponse:
        """See the contract. Jobs that run are shown as they are now, others as they ended."""
        jobs, token = await self._page(request, reads.list_jobs, self._job_to_proto, most_at_once=8)
        return pb.ListJobsResponse(jobs=jobs, next_page_token=token)

    async def ListIncidents(self, request: pb.ListIncidentsRequest, context: object) -> pb.ListIncidentsResponse:
        """See the contract."""
        incidents, token = await self._page(request, reads.list_incidents, codec.incident_to_proto)
        return pb.ListIncidentsResponse(incidents=incidents, next_page_token=token)

    async def ListVerdicts(self, request: pb.ListVerdictsRequest, context: object) -> pb.ListVerdictsResponse:
        """See the contract."""
        verdicts, token = await self._page(request, reads.list_verdicts, codec.verdict_to_proto)
        return pb.ListVerdictsResponse(verdicts=verdicts, next_page_token=token)

    async def ListPlans(self, request: pb.ListPlansRequest, context: object) -> pb.ListPlansResponse:
        """See the contract."""
        plans, token = await self._page(request, reads.list_plans, codec.plan_to_proto)
        return pb.ListPlansResponse(plans=plans, next_page_token=token)

    async def ExplainPlan(self, request: pb.ExplainPlanRequest, context: object) -> pb.ExplainPlanResponse:
        """See the contract."""
        requests.check_plan_id(request.plan_id)
        status = await self._history.read(reads.get_plan, request.plan_id)
        if status is None:
            raise UnknownPlanError(request.plan_id)
        incident_id = status.plan.incident_id
        incident = await self._history.read(reads.get_incident, incident_id) if incident_id else None
        return pb.ExplainPlanResponse(
            plan=codec.plan_to_proto(status),
            incident=None if incident is None else codec.incident_to_proto(incident),
            text=explain_plan(status, incident),
        )

    async def _page(
        self, request: Any, query: Any, to_message: Callable[[Any], M], *, most_at_once: int = 100
    ) -> tuple[list[M], str]:
        """A page of a list, and the token of the next one.

        Without a job's id it is of all jobs; any other job must be known, or a typing error looks like a quiet job.
        """
        of_job = {}
        if job_id := getattr(request, "job_id", ""):
            of_job["job_id"] = job_id
            requests.check_name("job_id", job_id)
            await self._job(job_id)
        read = partial(self._history.read, query, **of_job)
        return await page_of_messages(
            read, request.page_size, request.page_token, to_message, most_at_once=most_at_once
        )

    async def _job(self, job_id: str) -> pb.Job:
        present = self._fleet.job(job_id)
        if present is not None:
            return codec.job_to_proto(present)
        past = await self._history.read(reads.get_job, job_id)
        if past is None:
            raise UnknownJobError(job_id)
        return codec.job_status_to_proto(past)

    def _job_to_proto(self, past: JobStatus) -> pb.Job:
        present = self._fleet.job(past.job_id)
        return codec.job_status_to_proto(past) if present is None else codec.job_to_proto(present)


def _news_to_proto(news: JobNews) -> pb.WatchJobResponse:
    match news:
        case JobView():
            return pb.WatchJobResponse(job=codec.job_to_proto(news))
        case VerdictRecord():
            return pb.WatchJobResponse(verdict=codec.verdict_to_proto(news))
        case _:
            return pb.WatchJobResponse(plan=codec.plan_to_proto(news))
