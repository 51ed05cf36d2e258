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
from evenkeel.services.scheduler.adapters.api.errors import status_of
from evenkeel.services.scheduler.adapters.api.gate import Gate
from evenkeel.services.scheduler.adapters.api.tokens import TokenGuard, bearer_token

SERVICE = "evenkeel.scheduler.v1.FleetService"
# For callers that set no deadline, or a longer one: longer than the database's own time limit.
MAX_UNARY_SECONDS = 10.0

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

    def __init__(self, guard: TokenGuard, metrics: FleetApiMetrics, gate: Gate) -> None:
        self._guard = guard
        self._gate = gate
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

    async def _parsed(
        self, method: str, parse: Callable[[bytes], Any], raw: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Any:
        """The request; left to gRPC, bytes that are none would get UNKNOWN and the name of a Python class."""
        try:
            return parse(raw)
        except DecodeError as error:
            self._metrics.calls.labels(method, grpc.StatusCode.INVALID_ARGUMENT.name).inc()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of {method}: {error}")

    def _unary(
        self, method: str, parse: Callable[[bytes], Any], behaviour: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            request = await self._parsed(method, parse, raw, context)
            started = time.perf_counter()
            async with self._reported(method, request, context):
                remaining = context.time_remaining()
                limit = MAX_UNARY_SECONDS if remaining is None else min(remaining, MAX_UNARY_SECONDS)
                deadline = asyncio.timeout(limit)
                try:
                    async with deadline:
                        self._gate.check()
                        await self._guard.check(method, request, bearer_token(context.invocation_metadata() or ()))
                        response = await behaviour(request, context)
                except TimeoutError:
                    if not deadline.expired():
                        raise
                    await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"not done within {limit:.1f} s")
            self._metrics.seconds.labels(method).observe(time.perf_counter() - started)
            return response

        return call

    def _stream(
        self, method: str, parse: Callable[[bytes], Any], behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def call(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            request = await self._parsed(method, parse, raw, context)
            with self._metrics.streams.track_inprogress():
                async with self._reported(method, request, context):
                    self._gate.check()
                    await self._guard.check(method, request, bearer_token(context.invocation_metadata() or ()))
                    async for response in behaviour(request, context):
                        yield response

        return call

    @asynccontextmanager
    async def _reported(
        self, method: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[None]:
        """Turns errors into statuses, and says how the call ended."""
        job_id = getattr(request, "job_id", "")
        code = grpc.StatusCode.OK
        try:
            yield
        except grpc.aio.AbortError:
            code = _code_of(context)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:  # the boundary: every error of a call becomes its status
            code, message = status_of(error)
            if code is grpc.StatusCode.INTERNAL:
                _log.exception("call failed", method=method, job_id=job_id)
            await _abort(context, code, message)
        finally:
            self._metrics.calls.labels(method, code.name).inc()
            level = _log.debug if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED) else _log.warning
            level("call", method=method, job_id=job_id, code=code.name, peer=context.peer())


async def _abort(context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, message: str) -> None:
    try:
        await context.abort(code, message)
    except grpc.aio.InternalError as error:
        # Nobody is there to hear it: the caller's own deadline passed a moment before, which cancels the call.
        raise asyncio.CancelledError from error


def _code_of(context: grpc.aio.ServicerContext[Any, Any]) -> grpc.StatusCode:
    code = context.code()
    known = {member.value[0]: member for member in grpc.StatusCode}
    return code if isinstance(code, grpc.StatusCode) else known.get(code, grpc.StatusCode.UNKNOWN)
