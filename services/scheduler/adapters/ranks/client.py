"""Calls to a rank's controller over gRPC, on the service's event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.control.v1 import control_pb2_grpc
from evenkeel.history.records import PlanRecord
from evenkeel.layouts.codec import layout_to_proto, to_proto
from evenkeel.layouts.rank_codec import ballot_from_proto, rank_state_from_proto
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.adapters.ranks.tls import RankTls, tls_advice
from evenkeel.services.scheduler.dispatch.protocol import (
    Decision,
    Probe,
    RankAwayError,
    RankGoneError,
    RankRefusedError,
    RankTimeoutError,
    StaleBallotError,
)
from evenkeel.services.scheduler.leadership import Leadership

_REFUSAL_KEY = "evenkeel-refusal-bin"
_AWAY = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
)
_OPTIONS = (
    # A node that vanishes closes no connection: ask every few seconds. The controller allows it.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name also the longest that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each rank its own connection, even when an address is used again by a later process.
    ("grpc.use_local_subchannel_pool", 1),
)

Answer = TypeVar("Answer")


class RankClient:
    """One process of a rank; see :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""

    def __init__(
        self,
        *,
        job_id: str,
        job_token: str,
        rank: int,
        incarnation: int,
        address: str,
        leadership: Leadership,
        tls: RankTls | None = None,
    ) -> None:
        """Makes a channel, which connects when first used.

        Args:
            job_id: The job.
            job_token: Its token.
            rank: The rank; an answer that names another one counts as no answer.
            incarnation: Its process; likewise.
            address: host:port of its controller.
            leadership: What changes a rank is asked only by who is certainly in charge; every call tells the term.
            tls: How to talk to it; None = plain.
        """
        self._leadership = leadership
        self.rank = rank
        self.incarnation = incarnation
        self.address = address
        self._job_id = job_id
        self._metadata = (("authorization", f"Bearer {job_token}"),)
        self._tls = tls
        self._channel = (
            grpc.aio.insecure_channel(address, options=_OPTIONS) if tls is None else tls.channel(address, _OPTIONS)
        )
        self._open_stub = control_pb2_grpc.RankControlServiceStub(self._channel)
        self._is_closed = False

    async def prepare(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        self._require_leadership()
        request = pb.PrepareRequest(reshape=self._reshape(plan))
        return await self._state(self._stub.Prepare, request, timeout_seconds)

    async def commit(self, plan: PlanRecord, decision: Decision, timeout_seconds: float) -> RankState:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        request = to_proto(pb.CommitRequest, decision, reshape=self._reshape(plan), group_handles=())
        return await self._state(self._stub.Commit, request, timeout_seconds)

    async def abort(self, plan: PlanRecord, timeout_seconds: float) -> RankState:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        self._require_leadership()
        request = pb.AbortRequest(plan_id=plan.plan_id, epoch=plan.epoch, **self._about)
        return await self._state(self._stub.Abort, request, timeout_seconds)

    async def interrupt(self, epoch: int, *, leave: bool, timeout_seconds: float) -> None:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        self._require_leadership()
        request = pb.InterruptRequest(epoch=epoch, leave=leave, **self._about)
        await self._answer(self._stub.Interrupt, request, timeout_seconds)

    async def probe(self, probe: Probe, timeout_seconds: float) -> list[float]:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        request = to_proto(pb.ProbeRequest, probe, **self._about)
        answer = await self._answer(self._stub.Probe, request, timeout_seconds)
        if not answer.seconds:
            raise RankRefusedError(f"rank {self.rank} at {self.address}: a probe without figures")
        return list(answer.seconds)

    async def status(self, timeout_seconds: float) -> RankState:
        """See :class:`~evenkeel.services.scheduler.dispatch.protocol.RankCalls`."""
        request = pb.StatusRequest(**self._about)
        return await self._state(self._stub.Status, request, timeout_seconds)

    async def watch(self) -> AsyncIterator[RankState]:
        """States as they change, until the stream ends or breaks.

        Raises:
            RankAwayError: The stream broke, or could not be opened.
            RankRefusedError: The controller refuses it.
        """
        call = self._stub.Watch(pb.WatchRequest(**self._about), metadata=self._metadata)
        try:
            async for response in call:
                yield self._checked(response.state)
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channel; calls in hand, and later ones, end with :class:`RankGoneError`."""
        self._is_closed = True
        await self._channel.close()

    @property
    def _about(self) -> dict[str, Any]:
        return {"job_id": self._job_id, "term": self._leadership.term}

    def _reshape(self, plan: PlanRecord) -> pb.Reshape:
        return to_proto(pb.Reshape, plan, to_layout=layout_to_proto(plan.layout), term=self._leadership.term)

    @property
    def _stub(self) -> "control_pb2_grpc.RankControlServiceAsyncStub":
        if self._is_closed:
            raise self._gone()
        return self._open_stub

    def _gone(self) -> RankGoneError:
        return RankGoneError(f"rank {self.rank} incarnation {self.incarnation} is not talked to any more")

    def _require_leadership(self) -> None:
        """A decided plan may be told again by whoever it was; what is new, only by the one in charge."""
        if not self._leadership.holds:
            raise RankAwayError(f"rank {self.rank} is not asked: this scheduler may not be in charge any more")

    async def _state(self, ask: Callable[..., Awaitable[Any]], request: object, timeout_seconds: float) -> RankState:
        return self._checked((await self._answer(ask, request, timeout_seconds)).state)

    def _checked(self, message: pb.RankState) -> RankState:
        state = rank_state_from_proto(message)
        if (state.rank, state.incarnation) != (self.rank, self.incarnation):
            raise RankAwayError(
                f"{self.address} is now rank {state.rank} incarnation {state.incarnation}, "
                f"no longer rank {self.rank} incarnation {self.incarnation}"
            )
        return state

    def _error(self, error: grpc.aio.AioRpcError) -> RankAwayError | RankRefusedError:
        who, details = f"rank {self.rank} at {self.address}", error.details() or "no details"
        # A controller that answers but cannot be trusted is no dead one.
        if self._tls is not None and (advice := tls_advice(details)):
            return RankRefusedError(f"{who}: no TLS connection: {advice} ({details})")
        text = f"{who}: {error.code().name}: {details}"
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return RankTimeoutError(text)
        for key, value in error.trailing_metadata() or ():
            if key == _REFUSAL_KEY and isinstance(value, bytes):
                refusal = pb.Refusal.FromString(value)
                if refusal.reason == pb.REFUSAL_REASON_STALE_BALLOT:
                    return StaleBallotError(ballot_from_proto(refusal.promised), text)
                return RankRefusedError(text)
        return RankAwayError(text) if error.code() in _AWAY else RankRefusedError(text)

    async def _answer(self, ask: Callable[..., Awaitable[Answer]], request: object, timeout_seconds: float) -> Answer:
        try:
            return await ask(request, timeout=timeout_seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_closed and caller is not None and not caller.cancelling():
                raise self._gone() from None
            raise
