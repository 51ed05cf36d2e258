"""Health and metrics over HTTP, and the ready file.

Contract with whoever starts the process:

- ``GET /metrics`` answers in Prometheus text format; ``GET /livez`` answers 200 while the event loop turns;
  ``GET /healthz`` answers 200 when every part reported ready and 503 before that, with a JSON body
  ``{"ready": bool, "parts": {name: {"ready": bool, "detail": str}}}``.
- It listens on ``EVENKEEL_METRICS_HOST``:``EVENKEEL_METRICS_PORT``; with port 0 on any free port.
- If ``EVENKEEL_READY_FILE`` is set, the process writes ``{"metrics_port": int, "grpc_port": int | null, "pid": int}``
  there as soon as its ports are bound (atomically: the file is never half written) and removes it when it ends in an
  orderly way. After a ``kill -9`` the file of the dead process is still there: compare ``pid``.
  The ports being bound does not mean ready: ask ``/healthz`` for that.

Not covered: TLS and authentication on this port; bind it to an address that only your monitoring reaches.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from evenkeel.services.common.settings import BindError

_REQUEST_TIMEOUT_SECONDS = 5.0
_MAX_REQUEST_LINES = 100


class Health:
    """Which parts of the process are ready. Belongs to the event loop's thread."""

    def __init__(self, *parts: str) -> None:
        """Keeps what it is given; does no I/O.

        Args:
            parts: Names of the parts that must report before the process counts as ready.
        """
        self._parts: dict[str, tuple[bool, str]] = dict.fromkeys(parts, (False, "starting"))
        self._problems: dict[str, dict[str, str]] = {}

    def report(self, part: str, *, ready: bool, detail: str = "") -> None:
        """Sets the state of a part; an unknown one is added."""
        self._parts[part] = (ready, detail)

    def witness(self, part: str, name: str) -> Callable[[bool, str], None]:
        """For a part that several look at: it is ready when nobody who reported says otherwise.

        Args:
            part: The part.
            name: Who looks; says so in the detail.

        Returns:
            To be told (ready, what is wrong) at each change.
        """

        def report(ready: bool, problem: str) -> None:
            problems = self._problems.setdefault(part, {})
            problems.pop(name, None)
            if not ready:
                problems[name] = problem
            detail = "; ".join(f"{who}: {what}" for who, what in problems.items())
            self.report(part, ready=not problems, detail=detail)

        return report

    @property
    def ready(self) -> bool:
        """True when every part is."""
        return all(ready for ready, _ in self._parts.values())

    def as_dict(self) -> dict[str, object]:
        """The body of ``/healthz``."""
        parts = {name: {"ready": ready, "detail": detail} for name, (ready, detail) in self._parts.items()}
        return {"ready": self.ready, "parts": parts}


@contextlib.asynccontextmanager
async def health_server(health: Health, registry: CollectorRegistry, *, host: str, port: int) -> AsyncIterator[int]:
    """Serves ``/metrics``, ``/livez`` and ``/healthz`` inside the ``async with``; yields the bound port.

    Raises:
        BindError: The address is taken or not ours.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                path = await _read_request(reader)
                writer.write(_respond(path, health, registry))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port, limit=8192)
    except OSError as error:
        raise BindError(
            f"EVENKEEL_METRICS_HOST, EVENKEEL_METRICS_PORT: cannot listen on {host}:{port}: {error}; 0 = any free port"
        ) from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@contextlib.asynccontextmanager
async def ready_file(path: Path | None, *, metrics_port: int, grpc_port: int | None = None) -> AsyncIterator[None]:
    """Writes the ready file on entry and removes it on exit; does nothing when ``path`` is None."""
    if path is None:
        yield
        return
    content = json.dumps({"metrics_port": metrics_port, "grpc_port": grpc_port, "pid": os.getpid()})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content)
    temporary.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one system call


async def _read_request(reader: asyncio.StreamReader) -> str:
    """The path of a GET or HEAD request; empty for anything else."""
    words = (await reader.readline()).decode("latin-1").split()
    for _ in range(_MAX_REQUEST_LINES):
        if (await reader.readline()).strip() == b"":
            break
    if len(words) != 3 or words[0] not in ("GET", "HEAD"):
        return ""
    return words[1].partition("?")[0]


def _respond(path: str, health: Health, registry: CollectorRegistry) -> bytes:
    status, content_type, body = "404 Not Found", "text/plain; charset=utf-8", b"try /metrics, /healthz or /livez\n"
    if path == "/metrics":
        status, content_type, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
    elif path == "/livez":
        status, body = "200 OK", b"alive\n"
    elif path == "/healthz":
        status = "200 OK" if health.ready else "503 Service Unavailable"
        content_type, body = "application/json", json.dumps(health.as_dict()).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
