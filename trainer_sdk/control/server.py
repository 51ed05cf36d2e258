"""The rank controller's gRPC server. Handlers only talk to the mailbox; nothing here touches a device or a group.

It is the synchronous server on purpose: an asyncio one kills DataLoader workers that are forked while it has traffic.
For the same reason the package switches gRPC's own fork handlers off before gRPC is loaded.
"""

import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar, cast

import grpc

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.control.v1 import control_pb2_grpc
from evenkeel.layouts.codec import from_proto
from evenkeel.layouts.rank_codec import ballot_to_proto, rank_state_to_proto
from evenkeel.layouts.rank_state import Ballot, LinkProbe, RankState
from evenkeel.trainer_sdk.control import GRPC_CAME_FIRST
from evenkeel.trainer_sdk.control.daemon_threads import DaemonThreads
from evenkeel.trainer_sdk.control.fleet.address import join_address
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.refusals import FinishedError, StaleBallotError
from evenkeel.trainer_sdk.control.state import Reshape, commit_from_proto, reshape_from_proto
from evenkeel.trainer_sdk.control.tls import ControllerTls, security_of

_log = logging.getLogger(__name__)

MAX_WATCHES = 2  # the scheduler that is, and the one before it whose connection has not broken yet
_NUM_THREADS = MAX_WATCHES + 3
_DEFAULT_DEADLINE_SECONDS = 10.0
_LONGEST_DEADLINE_SECONDS = 60.0  # a call that waits holds one of the few threads
_WATCH_SLICE_SECONDS = 0.5
_REFUSAL_KEY = "evenkeel-refusal-bin"
_Response = TypeVar("_Response")
_Request = (
    pb.Reshape | pb.AbortRequest | pb.InterruptRequest | pb.ProbeRequest | pb.StatusRequest | pb.WatchRequest
)  # what names the job and the caller's term


class ControlServer:
    """Serves ``RankControlService`` for one rank until stopped.

    Args:
        mailbox: Where handlers leave plans for the training thread.
        job_id: The only job this controller answers for.
        job_token: Bearer token that every call must carry.
        bind_host: Address to listen on.
        port: Port; 0 = any free one.
        can_reshape: False for a training loop that cannot apply plans: Prepare and Commit are refused.
        tls: Certificate and key, and whose the scheduler's must be; None = no TLS.

    Raises:
        ValueError: The token is empty.
        OSError: A file of ``tls`` cannot be read.
        RuntimeError: The address cannot be bound.

    Attributes:
        port: The port it listens on.
        security: What it asks of connections, as the rank registers it.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        job_id: str,
        job_token: str,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        can_reshape: bool = True,
        tls: ControllerTls | None = None,
    ) -> None:
        if not job_token:
            raise ValueError("the rank controller needs the job's token: set EVENKEEL_JOB_TOKEN")
        if GRPC_CAME_FIRST:
            _log.warning(
                "grpc was imported before trainer_sdk, with its fork handlers: forked DataLoader workers may crash; "
                "import trainer_sdk first, or set GRPC_ENABLE_FORK_SUPPORT=0"
            )
        self._bind_host = bind_host
        self._handlers = _Handlers(mailbox, job_id, job_token, can_reshape)
        self._executor = DaemonThreads(_NUM_THREADS, "evenkeel-control")
        self._server = grpc.server(
            cast(ThreadPoolExecutor, self._executor),  # the stubs name the usual one
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        control_pb2_grpc.add_RankControlServiceServicer_to_server(self._handlers, self._server)
        self.security = security_of(tls)
        address = join_address(bind_host, port)
        self.port = (
            self._server.add_insecure_port(address)
            if tls is None
            else self._server.add_secure_port(address, tls.credentials())
        )

    def address(self, advertise_host: str = "") -> str:
        """``host:port`` for others; ``advertise_host`` replaces a bound host that only this machine understands."""
        return join_address(advertise_host or self._bind_host, self.port)

    @property
    def num_watches(self) -> int:
        """Watch streams that are open: 0 means that no scheduler knows this rank."""
        return self._handlers.num_watches

    def start(self) -> None:
        """Begin to answer; returns at once."""
        self._server.start()

    def stop(self, grace_seconds: float = 0.5) -> None:
        """Send the last state to every watcher, end the streams, and stop; blocks for at most ``grace_seconds``."""
        self._handlers.stop()
        self._server.stop(grace_seconds).wait(grace_seconds + 0.5)
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Handlers(control_pb2_grpc.RankControlServiceServicer):
    def __init__(self, mailbox: Mailbox, job_id: str, job_token: str, can_reshape: bool) -> None:
        self._mailbox = mailbox
        self._job_id = job_id
        self._authorization = f"Bearer {job_token}".encode()
        self._can_reshape = can_reshape
        self._stopped = threading.Event()
        self._watches: list[object] = []  # newest last
        self._watches_lock = threading.Lock()

    @property
    def num_watches(self) -> int:
        return len(self._watches)

    def stop(self) -> None:
        self._stopped.set()
        self._mailbox.wake()

    def Prepare(self, request: pb.PrepareRequest, context: grpc.ServicerContext) -> pb.PrepareResponse:  # noqa: N802
        def prepare() -> RankState:
            reshape = self._usable(reshape_from_proto(request.reshape), context)
            return self._mailbox.prepare(reshape, _seconds_left(context))

        return pb.PrepareResponse(state=rank_state_to_proto(self._answer(context, request.reshape, prepare)))

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.CommitResponse:  # noqa: N802
        def commit() -> RankState:
            decision = commit_from_proto(request)
            self._usable(decision.reshape, context)
            return self._mailbox.commit(decision)

        return pb.CommitResponse(state=rank_state_to_proto(self._answer(context, request.reshape, commit)))

    def Abort(self, request: pb.AbortRequest, context: grpc.ServicerContext) -> pb.AbortResponse:  # noqa: N802
        ballot = Ballot(request.term, request.epoch)
        state = self._answer(context, request, lambda: self._mailbox.abort(request.plan_id, ballot))
        return pb.AbortResponse(state=rank_state_to_proto(state))

    def Interrupt(self, request: pb.InterruptRequest, context: grpc.ServicerContext) -> pb.InterruptResponse:  # noqa: N802
        state = self._answer(context, request, lambda: self._mailbox.interrupt(request.epoch, leave=request.leave))
        return pb.InterruptResponse(state=rank_state_to_proto(state))

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> pb.ProbeResponse:  # noqa: N802
        def probe() -> list[float]:
            desk, left = self._mailbox.probes, _seconds_left(context)
            if request.HasField("link"):
                return desk.ask_link(from_proto(LinkProbe, request.link, repetitions=request.repetitions), left)
            return desk.ask(request.matrix_size, request.repetitions, left)

        return pb.ProbeResponse(seconds=self._answer(context, request, probe))

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:  # noqa: N802
        state = self._answer(context, request, lambda: self._mailbox.state)
        return pb.StatusResponse(state=rank_state_to_proto(state))

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:  # noqa: N802
        self._answer(context, request, lambda: None)
        watch = object()
        with self._watches_lock:
            self._watches = [*self._watches, watch][-MAX_WATCHES:]
        self._mailbox.wake()
        context.add_callback(self._mailbox.wake)

        def is_over() -> bool:
            return not context.is_active() or self._stopped.is_set() or watch not in self._watches

        try:
            seen = -1
            while True:
                version, state = self._mailbox.wait_for_change(seen, _WATCH_SLICE_SECONDS, is_over)
                if version != seen:
                    seen = version
                    yield pb.WatchResponse(state=rank_state_to_proto(state))
                elif is_over():
                    break
            if watch not in self._watches:
                context.abort(grpc.StatusCode.ABORTED, f"{MAX_WATCHES} newer streams watch this rank")
        finally:
            with self._watches_lock:
                self._watches = [other for other in self._watches if other is not watch]

    def _usable(self, reshape: Reshape, context: grpc.ServicerContext) -> Reshape:
        if not self._can_reshape:
            self._refuse(context, pb.REFUSAL_REASON_CANNOT_RESHAPE, "this rank's training loop cannot be reshaped")
        try:
            self._mailbox.check(reshape.to_layout)
        except ValueError as error:
            self._refuse(context, pb.REFUSAL_REASON_UNABLE, str(error))
        return reshape

    def _answer(self, context: grpc.ServicerContext, request: _Request, call: Callable[[], _Response]) -> _Response:
        """Check the caller and its term, then make the call, with our errors as status codes."""
        self._check(context, request.job_id)
        try:
            self._mailbox.follow(request.term)
            return call()
        except StaleBallotError as error:
            self._refuse(context, pb.REFUSAL_REASON_STALE_BALLOT, str(error), error.promised)
        except FinishedError as error:
            self._refuse(context, pb.REFUSAL_REASON_FINISHED, str(error))
        except ValueError as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError as error:
            _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except RuntimeError as error:
            _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))

    def _refuse(
        self,
        context: grpc.ServicerContext,
        reason: "pb.RefusalReason.ValueType",
        message: str,
        promised: Ballot | None = None,
    ) -> NoReturn:
        """A no of the rank's own: what a caller must know of it is in the trailing metadata, not in the words."""
        refusal = pb.Refusal(reason=reason, promised=ballot_to_proto(promised or self._mailbox.state.promised))
        context.set_trailing_metadata(((_REFUSAL_KEY, refusal.SerializeToString()),))
        _abort(context, grpc.StatusCode.FAILED_PRECONDITION, message)

    def _check(self, context: grpc.ServicerContext, job_id: str) -> None:
        given = b""
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                given = value if isinstance(value, bytes) else value.encode()
        if not hmac.compare_digest(given, self._authorization):
            _abort(
                context,
                grpc.StatusCode.UNAUTHENTICATED,
                "send metadata 'authorization: Bearer <job token>' with the token of this job",
            )
        if job_id != self._job_id:
            _abort(context, grpc.StatusCode.NOT_FOUND, f"this rank belongs to job {self._job_id!r}, not to {job_id!r}")


def _seconds_left(context: grpc.ServicerContext) -> float:
    remaining = context.time_remaining()
    # A little less than the caller waits, so that it gets our message and not its own.
    return (
        _DEFAULT_DEADLINE_SECONDS
        if remaining is None
        else max(min(remaining, _LONGEST_DEADLINE_SECONDS) * 0.95 - 0.01, 0.0)
    )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("context.abort always raises")
