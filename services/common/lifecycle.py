"""From process start to exit code: one event loop, signals that cancel, one place that reports a crash.

Model: a service is one coroutine. SIGTERM and SIGINT cancel it once; it closes what it opened on the way out, by
``async with`` and ``finally``; a second signal ends the process at once. The exit code is 0 after a signal or a normal
end, 1 after an error, 2 after wrong settings.

Ready file and health: see :mod:`evenkeel.services.common.health`.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

import structlog

from evenkeel.services.common.logging import configure_logging
from evenkeel.services.common.settings import BindError, ServiceSettings, effective

EXIT_FAILED = 1
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger(__name__)


def run_service(
    name: str,
    settings: ServiceSettings,
    serve: Callable[[], Coroutine[Any, Any, None]],
    *,
    foreseen: tuple[type[Exception], ...] = (),
) -> int:
    """Runs a service to its end and returns the exit code; blocks.

    Args:
        name: For the logs.
        settings: Logged at start with secrets blanked.
        serve: Makes the coroutine that is the service; called once, inside the event loop.
        foreseen: Errors that end it and are nobody's mistake: one line tells of them, without a traceback.
    """
    configure_logging(name, level=settings.log_level)
    # What is loaded by now stays, and a batch of records is tens of thousands of objects that are gone together: to
    # look at them again and again for cycles costs more than to handle them.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 20)
    _log.info("starting", **effective(settings))
    code = asyncio.run(_until_stopped(serve, foreseen))
    _log.info("stopped", exit_code=code)
    return code


def leave(code: int) -> NoReturn:
    """Ends the process of a service that has closed what it opened.

    To take the interpreter apart, which is what else would follow, is to race with gRPC's own threads: on a busy
    machine that ended by SIGSEGV once, after all was saved.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _until_stopped(serve: Callable[[], Coroutine[Any, Any, None]], foreseen: tuple[type[Exception], ...]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(serve())
    stopping = False

    def stop(received: signal.Signals) -> None:
        nonlocal stopping
        _log.info("stopping", signal=received.name)
        stopping = True
        task.cancel()
        for each in _SIGNALS:  # the next signal gets the system's own treatment
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop, each)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
    except BaseExceptionGroup as group:
        if not stopping or group.split(asyncio.CancelledError)[1] is not None:
            _report(group, foreseen)
            return EXIT_FAILED
    except Exception as error:
        _report(error, foreseen)
        return EXIT_FAILED
    return 0


def _report(error: BaseException, foreseen: tuple[type[Exception], ...]) -> None:
    """A crash with its traceback; in one line an address that cannot be had, and what was foreseen."""
    leaves = list(_leaves(error))
    if all(isinstance(leaf, BindError) for leaf in leaves):
        _log.error("cannot start", error="; ".join(map(str, leaves)))
    elif all(isinstance(leaf, foreseen) for leaf in leaves):
        _log.warning("ends", reason="; ".join(dict.fromkeys(map(str, leaves))))
    else:
        _log.error("failed", exc_info=error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
