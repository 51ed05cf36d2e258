"""Who may call what: the fleet token opens everything, a job's token the calls about that job."""

import hmac
from collections import OrderedDict
from collections.abc import Iterable

from evenkeel.history import reads
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.errors import TokenMissingError, TokenRefusedError
from evenkeel.services.scheduler.adapters.store.store import Store

# A job's token never changes, so an entry is never stale.
_MAX_REMEMBERED_TOKENS = 10_000
_SCHEME = "bearer "


OF_ONE_JOB = frozenset(
    (
        "RegisterRanks",
        "ReportExits",
        "FinishJob",
        "GetJob",
        "WatchJob",
        "ListIncidents",
        "ListVerdicts",
        "ListPlans",
        "ExplainPlan",
    )
)
"""Calls about a job, which its token opens too."""


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token in a call's metadata.

    Raises:
        TokenMissingError: There is none, or it is not a bearer token.
    """
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.lower().startswith(_SCHEME):
            token = value[len(_SCHEME) :].strip()
            if token:
                return token
    raise TokenMissingError("send metadata 'authorization: Bearer <token>'")


class TokenGuard:
    """Decides whether a call may go on. Belongs to the event loop's thread."""

    def __init__(self, fleet_token: str, history: Store) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            fleet_token: Opens everything.
            history: Knows the jobs' tokens and the plans' jobs.
        """
        self._fleet_token = fleet_token.encode()
        self._history = history
        self._remembered: OrderedDict[str, bytes] = OrderedDict()

    async def check(self, method: str, request: object, token: str) -> None:
        """Return if ``token`` allows ``method`` with ``request``. An unknown job is refused like a wrong token.

        Args:
            method: Name of the RPC without its service.
            request: Its message.
            token: From :func:`bearer_token`.

        Raises:
            TokenRefusedError: It does not.
        """
        if hmac.compare_digest(token.encode(), self._fleet_token):
            return
        if method not in OF_ONE_JOB:
            raise TokenRefusedError(f"{method} needs the fleet token")
        job_id = await self._job_of(request)
        if not job_id:
            raise TokenRefusedError(f"{method} over all jobs needs the fleet token; name a job to use its own")
        expected = await self._token_of(job_id)
        # Compare in any case: how long a refusal takes should not tell whether the job exists.
        if not hmac.compare_digest(token.encode(), expected or b"\x00") or expected is None:
            raise TokenRefusedError("the token is neither the fleet's nor that job's")

    async def _job_of(self, request: object) -> str:
        if isinstance(request, pb.ExplainPlanRequest):
            status = await self._history.read(reads.get_plan, request.plan_id)
            return status.plan.job_id if status is not None else "-"
        job_id: str = getattr(request, "job_id", "")
        return job_id

    async def _token_of(self, job_id: str) -> bytes | None:
        known = self._remembered.get(job_id)
        if known is not None:
            self._remembered.move_to_end(job_id)
            return known
        token = await self._history.read(reads.job_token, job_id)
        if token is None:
            return None
        self._remembered[job_id] = token.encode()
        if len(self._remembered) > _MAX_REMEMBERED_TOKENS:
            self._remembered.popitem(last=False)
        return token.encode()
