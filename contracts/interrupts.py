"""Ctrl-C while a program is still being loaded: it ends at once, and there is nothing to tell of it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """Inside, SIGINT ends the process as SIGTERM does, without Python's traceback. Main thread only.

    It is for imports: what is interrupted there has nothing to close. Whoever is deaf to SIGINT stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
