"""The emitter that reaches Kafka: the training thread appends, a background thread sends.

The training thread appends to a bounded deque and nothing else: waking the background thread by a system call would
release the GIL, and getting it back costs 50 to 100 us. So the background thread looks every 20 ms; process events,
which are rare and urgent, do wake it. It runs its own event loop with an aiokafka producer and reconnects for ever;
while it cannot send, the oldest entries are dropped and counted. It does not survive a fork.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from evenkeel.contracts.mac import JobKey, signed
from evenkeel.contracts.topics import BATCHES, record_headers
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.emit.producer import (
    SEND_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    create_producer,
)
from evenkeel.trainer_sdk.emit.progress import ProgressReports
from evenkeel.trainer_sdk.emit.readings import HostReadings

DEFAULT_CAPACITY = 2048
_MAX_PER_RECORD = 256  # a sample is 100 to 1,000 bytes, a request at most 1 MiB
_LOOK_SECONDS = 0.02
_FIRST_BACK_OFF_SECONDS = 0.25
_LONGEST_BACK_OFF_SECONDS = 5.0

_logger = logging.getLogger("evenkeel.emit")
# An application that configures no logging would otherwise see aiokafka complain on stderr at every attempt.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())

_Entry = pb.ProcessEvent | Callable[[], Measured]


class KafkaEmitter(Emitter):
    """Sends samples, progress and events of one process to Kafka; never blocks or raises into its caller.

    Args:
        bootstrap_servers: ``host:port[,host:port]``.
        source: Who emits.
        security: How Kafka is spoken to, see :mod:`evenkeel.contracts.kafka_security`.
        key: Signs each batch, see :func:`evenkeel.contracts.mac.job_key`; None: none is signed.
        capacity: Entries kept while Kafka is away; the oldest go first.
        is_rank: False for a launcher, which has no training thread to report the progress of, and reads no host.

    Attributes:
        num_dropped: Entries dropped so far because the queue was full or an entry could not be built.
        num_sent: Samples and events that Kafka acknowledged so far.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        source: Source,
        *,
        security: Mapping[str, Any] | None = None,
        key: JobKey | None = None,
        capacity: int = DEFAULT_CAPACITY,
        is_rank: bool = True,
    ) -> None:
        super().__init__()
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._security = security or {}
        self._key = key
        self._capacity = capacity
        self._queue: deque[_Entry] = deque(maxlen=capacity)
        self.num_dropped = 0
        self.num_sent = 0
        self._pending: list[_Entry] = []
        self._builder = BatchBuilder(source)
        self._reports = ProgressReports(self.progress) if is_rank else None
        self._readings = HostReadings() if is_rank else None
        self._warned = False
        self._close_at_seconds: float | None = None
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._until_closed: asyncio.Timeout | None = None
        self._thread = threading.Thread(target=self._run, name="evenkeel-emit", daemon=True)
        self._thread.start()

    # ---- any thread

    def emit_later(self, build: Callable[[], Measured]) -> None:
        """Queue one finished iteration."""
        self._append(build)

    def emit_event(self, event: pb.ProcessEvent) -> None:
        """Queue a process event; it leaves at once."""
        self._append(event)
        self._wake()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Send what is queued, for at most ``timeout_seconds``, and end the background thread. Twice is once."""
        if self._close_at_seconds is None:
            self._close_at_seconds = time.monotonic() + timeout_seconds
            self._wake()
        self._thread.join(timeout_seconds + 2 * STOP_TIMEOUT_SECONDS)

    def _append(self, entry: _Entry) -> None:
        if len(self._queue) >= self._capacity:
            self.num_dropped += 1
        self._queue.append(entry)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed: nobody is left to wake
            self._loop.call_soon_threadsafe(self._on_wake)

    # ---- the background thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except Exception:
            _logger.exception("the emit path stopped; training goes on without telemetry")

    async def _main(self) -> None:
        with contextlib.suppress(TimeoutError):  # the time to close is over: what is not sent stays unsaid
            async with asyncio.timeout(None) as self._until_closed:
                self._on_wake()  # perhaps it is closed already
                await self._send_until_over()

    async def _send_until_over(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        while not self._is_over():
            producer = create_producer(self._bootstrap_servers, f"evenkeel-{self._source.job_id}", self._security)
            num_sent = self.num_sent
            try:
                async with asyncio.timeout(START_TIMEOUT_SECONDS):
                    await producer.start()
                await self._pump(producer)
            except (KafkaError, OSError, TimeoutError) as error:
                self._warn(error)
            finally:
                await _stop(producer)
            back_off_seconds = _FIRST_BACK_OFF_SECONDS if self.num_sent > num_sent else back_off_seconds * 2
            await self._pause(min(back_off_seconds, _LONGEST_BACK_OFF_SECONDS))

    async def _pump(self, producer: AIOKafkaProducer) -> None:
        """Send until closed; returns once everything is sent, raises when Kafka does not answer."""
        while not self._is_over():
            if not self._queue and not self._pending and self._close_at_seconds is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._woken.wait()
            self._woken.clear()
            batches = self._next_batches()
            for batch in batches:
                async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                    await producer.send_and_wait(
                        BATCHES.name,
                        signed(batch.SerializeToString(), self._key),
                        key=self._source.job_id.encode(),
                        headers=record_headers(BATCHES, "evenkeel/trainer_sdk"),
                    )
            if batches:
                self._sent()

    def _sent(self) -> None:
        self.num_sent += len(self._pending)
        self._pending = []
        if self._warned:
            self._warned = False
            _logger.warning("Kafka is back; %d samples were dropped in all", self.num_dropped)

    def _next_batches(self) -> list[Batch]:
        if self._pending and len(self._queue) >= self._capacity:
            self.num_dropped += len(self._pending)
            self._pending = []
        while self._queue and len(self._pending) < _MAX_PER_RECORD:
            self._pending.append(self._queue.popleft())
        measured, events = [], []
        for entry in self._pending:
            if isinstance(entry, pb.ProcessEvent):
                events.append(entry)
            elif (built := self._build(entry)) is not None:
                measured.append(built)
        progress = self._reports.take(time.perf_counter(), time.time()) if self._reports else None
        readings = self._readings.take(time.monotonic(), time.time()) if self._readings else []
        if not measured and not events and progress is None and not readings:
            return []
        return self._builder.build(
            measured=measured,
            events=events,
            progress=progress,
            readings=readings,
            num_dropped=self.num_dropped,
        )

    def _build(self, entry: Callable[[], Measured]) -> Measured | None:
        try:
            return entry()
        except Exception:
            self.num_dropped += 1
            _logger.exception("a sample could not be built and is dropped")
            return None

    def _on_wake(self) -> None:
        self._woken.set()
        scope = self._until_closed
        if self._close_at_seconds is not None and scope is not None and scope.when() is None:
            scope.reschedule(self._close_at_seconds)  # asyncio reads the same clock

    def _is_over(self) -> bool:
        """Closed, and everything is sent."""
        return self._close_at_seconds is not None and not (self._queue or self._pending)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._is_over():
                    self._woken.clear()
                    await self._woken.wait()

    def _warn(self, error: Exception) -> None:
        if not self._warned and self._close_at_seconds is None:
            self._warned = True
            _logger.warning(
                "Kafka at %s does not answer (%s); training goes on, the newest %d entries are kept. "
                "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS names the address, EVENKEEL_KAFKA_SECURITY_PROTOCOL how to talk",
                self._bootstrap_servers,
                str(error) or type(error).__name__,
                self._capacity,
            )


async def _stop(producer: AIOKafkaProducer) -> None:
    """Stop without waiting for a broker that does not answer."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError):
        await producer.client.close()
