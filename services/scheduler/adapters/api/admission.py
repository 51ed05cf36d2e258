"""Which calls are let in: those to the scheduler in charge, with the fleet's token or about a job with its own."""

import hmac
from collections.abc import Iterable
from typing import Any

import grpc

from evenkeel.history import reads
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.errors import RefusedError
from evenkeel.services.scheduler.adapters.store.store import Store

# A job's token never changes, so what is remembered is never stale.
_MAX_REMEMBERED_TOKENS = 10_000
_SCHEME = "bearer "

_OF_ONE_JOB = {"RegisterRanks", "ReportExits", "FinishJob", "GetJob", "WatchJob"}
_OF_ONE_JOB |= {"ListIncidents", "ListVerdicts", "ListPlans", "ExplainPlan"}
"""Calls about a job, which its token opens too."""


class Admission:
    """Closed until the scheduler is in charge. Belongs to the event loop's thread."""

    def __init__(self, fleet_token: str, history: Store) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            fleet_token: Opens everything.
            history: Knows the jobs' tokens and the plans' jobs.
        """
        self._fleet_token = fleet_token.encode()
        self._history = history
        self._is_open = False
        self._leader = ""
        self._remembered: dict[str, bytes] = {}

    def stand_by(self, leader: str) -> None:
        """Somebody else is in charge, whose fleet API is at ``leader``: callers are told so."""
        self._is_open, self._leader = False, leader

    def open(self) -> None:
        """From now on calls are let in."""
        self._is_open = True

    async def check(self, method: str, request: Any, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Return if a call may go on. An unknown job is refused like a wrong token.

        Args:
            method: Name of the RPC without its service.
            request: Its message.
            metadata: The call's.

        Raises:
            RefusedError: It may not.
        """
        if not self._is_open:
            where = f"this scheduler stands by; the one in charge is at {self._leader}"
            nowhere = "no scheduler is in charge yet; try again"
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, where if self._leader else nowhere)
        token = _bearer_token(metadata).encode()
        if hmac.compare_digest(token, self._fleet_token):
            return
        if method not in _OF_ONE_JOB:
            raise _denied(f"{method} needs the fleet token")
        job_id = await self._job_of(request)
        if not job_id:
            raise _denied(f"{method} over all jobs needs the fleet token; name a job to use its own")
        expected = await self._token_of(job_id)
        # Compare in any case: how long a refusal takes should not tell whether the job exists.
        if not hmac.compare_digest(token, expected or b"\x00") or expected is None:
            raise _denied("the token is neither the fleet's nor that job's")

    async def _job_of(self, request: Any) -> str:
        if isinstance(request, pb.ExplainPlanRequest):
            status = await self._history.read(reads.get_plan, request.plan_id)
            return status.plan.job_id if status is not None else "-"
        return str(request.job_id)

    async def _token_of(self, job_id: str) -> bytes | None:
        if job_id not in self._remembered:
            token = await self._history.read(reads.job_token, job_id)
            if token is None:
                return None
            if len(self._remembered) >= _MAX_REMEMBERED_TOKENS:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[job_id] = token.encode()
        return self._remembered[job_id]


def _bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.lower().startswith(_SCHEME):
            token = value[len(_SCHEME) :].strip()
            if token:
                return token
    raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "send metadata 'authorization: Bearer <token>'")


def _denied(why: str) -> RefusedError:
    return RefusedError(grpc.StatusCode.PERMISSION_DENIED, why)
