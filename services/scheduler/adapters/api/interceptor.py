"""What surrounds every call of the fleet API: token, deadline, status codes, one log line, metrics.

Health and reflection pass untouched: they need no token and tell nothing about jobs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from evenkeel.services.common.metrics import SHORT_SECONDS_BUCKETS
from evenkeel.services.scheduler.adapters.api.admission import Admission
from evenkeel.services.scheduler.adapters.api.errors import InvalidRequestError, status_of

SERVICE = "evenkeel.scheduler.v1.FleetService"
# For callers that set no deadline, or a longer one: longer than the database's own time limit.
MAX_UNARY_SECONDS = 10.0
_MOST_LOGGED_CHARACTERS = 128

_log = structlog.get_logger(__name__)


class FleetApiMetrics:
    """What the fleet API counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "evenkeel_fleet_api_calls", "Calls that ended, by status code", ("method", "code"), registry=registry
        )
        self.seconds = Histogram(
            "evenkeel_fleet_api_seconds",
            "Time of a call; streams are not in it",
            ("method",),
            buckets=SHORT_SECONDS_BUCKETS,
            registry=registry,
        )
        self.streams = Gauge("evenkeel_fleet_api_streams", "WatchJob streams that are open", registry=registry)


class FleetApiInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Wraps the handlers of the fleet service."""

    def __init__(self, admission: Admission, metrics: FleetApiMetrics) -> None:
        self._admission = admission
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for each call, before its request is read."""
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service != SERVICE:
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.request_deserializer, handler.unary_stream),
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.request_deserializer, handler.unary_unary),
            response_serializer=handler.response_serializer,
        )

    def _unary(
        self, method: str, parse: Callable[[bytes], Any], behaviour: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            started = time.perf_counter()
            remaining = context.time_remaining()
            limit = MAX_UNARY_SECONDS if remaining is None else min(remaining, MAX_UNARY_SECONDS)
            async with self._admitted(method, parse, raw, context, limit) as request:
                response = await behaviour(request, context)
            self._metrics.seconds.labels(method).observe(time.perf_counter() - started)
            return response

        return call

    def _stream(
        self, method: str, parse: Callable[[bytes], Any], behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def call(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            with self._metrics.streams.track_inprogress():
                async with self._admitted(method, parse, raw, context, None) as request:
                    async for response in behaviour(request, context):
                        yield response

        return call

    @asynccontextmanager
    async def _admitted(
        self,
        method: str,
        parse: Callable[[bytes], Any],
        raw: bytes,
        context: grpc.aio.ServicerContext[Any, Any],
        limit_seconds: float | None,
    ) -> AsyncIterator[Any]:
        """The request of a call that is let in; errors become statuses, and how the call ended is told."""
        job_id, why, code = "", "", grpc.StatusCode.OK
        deadline = asyncio.timeout(limit_seconds)
        try:
            async with deadline:
                request = _parsed(method, parse, raw)
                # Nobody has looked at it yet, and whoever reaches the port may send megabytes.
                job_id = getattr(request, "job_id", "")[:_MOST_LOGGED_CHARACTERS]
                await self._admission.check(method, request, context.invocation_metadata() or ())
                yield request
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:  # the boundary: every error of a call becomes its status
            code, why = status_of(error)
            if deadline.expired():
                code, why = grpc.StatusCode.DEADLINE_EXCEEDED, f"not done within {limit_seconds:.1f} s"
            if code is grpc.StatusCode.INTERNAL:
                _log.exception("call failed", method=method, job_id=job_id)
            await _abort(context, code, why)
        finally:
            self._metrics.calls.labels(method, code.name).inc()
            level = _log.debug if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED) else _log.warning
            level("call", method=method, job_id=job_id, code=code.name, reason=why, peer=context.peer())


def _parsed(method: str, parse: Callable[[bytes], Any], raw: bytes) -> Any:
    """The request; left to gRPC, bytes that are none would get UNKNOWN and the name of a Python class."""
    try:
        return parse(raw)
    except DecodeError as error:
        raise InvalidRequestError(f"not a request of {method}: {error}") from error


async def _abort(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, message: str) -> None:
    try:
        await context.abort(code, message)
    except grpc.aio.InternalError as error:
        # Nobody is there to hear it: the caller's own deadline passed a moment before, which cancels the call.
        raise asyncio.CancelledError from error
