"""Structured logs: JSON lines, or coloured text on a terminal; the standard library's loggers share the format."""

import logging
import sys
import time
from typing import Any

import structlog

_CHATTY = ("aiokafka", "grpc", "sqlalchemy", "psycopg", "asyncio")
_REPEAT_SECONDS = 60.0


class RepeatFilter(logging.Filter):
    """Lets one message of a library through per minute: a client without its broker repeats itself every second.

    Of a Kafka client that is one for each of its modules: it has many words for a broker that is away, and so have we.
    """

    def __init__(self, repeat_seconds: float = _REPEAT_SECONDS) -> None:
        super().__init__()
        self._repeat_seconds = repeat_seconds
        self._last_seconds: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a message that was let through less than a minute ago, or that is below a warning.

        What psycopg warns of is a server that did not hear it in time, which is said once where it is noticed.
        """
        if record.levelno < (logging.ERROR if record.name.startswith("psycopg") else logging.WARNING):
            return False
        error = record.exc_info[1] if record.exc_info else None
        kafka = "aiokafka" in (record.name.partition(".")[0], type(error).__module__.partition(".")[0])
        if kafka and error is not None:
            # Its own task ended with it, for nobody to see: where in the library says nothing.
            record.msg, record.args, record.exc_info = f"{type(error).__name__}: {error}", (), None
        key = (record.name, "" if kafka else str(record.msg)[:60])
        now_seconds = time.monotonic()
        if now_seconds - self._last_seconds.get(key, -self._repeat_seconds) < self._repeat_seconds:
            return False
        if len(self._last_seconds) > 1000:
            self._last_seconds.clear()
        self._last_seconds[key] = now_seconds
        return True


def configure_logging(service: str, *, level: str = "INFO") -> None:
    """Sends all logs of the process to standard error in one format; call it once, first thing in ``main``.

    Args:
        service: Goes into every line.
        level: Least severe level to show.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_service(service),
    ]
    terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    )
    finish: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if not terminal:
        finish.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*finish, renderer]))
    repeats = RepeatFilter()
    handler.addFilter(lambda record: not record.name.startswith(_CHATTY) or repeats.filter(record))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _add_service(service: str) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return add
