"""Owner of a background stack: ``python -m evenkeel.stack --name dev``. Ends on SIGTERM or SIGINT, with all of it."""

import argparse
import signal
import sys
import threading
from types import FrameType

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.stack.errors import StackError
    from evenkeel.stack.stack import Stack

_TELL_SECONDS = 5.0


class _StopRequestedError(BaseException):
    """A signal asked us to stop while the stack was starting."""


def main() -> int:
    """Runs a stack until a signal; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="dev", help="folder below .stack")
    parser.add_argument("--instances", type=int, default=2, help="processes of each service")
    arguments = parser.parse_args()

    stop = threading.Event()
    starting = True

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal starting
        stop.set()
        if starting:
            starting = False
            raise _StopRequestedError

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    stack = Stack(arguments.name, num_instances=arguments.instances)
    try:
        stack.start()
        starting = False
        # A disk that was full when a part was started again may have room now.
        while not stop.wait(_TELL_SECONDS):
            stack.tell()
    except _StopRequestedError:
        return 0
    except StackError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        starting = False
        stack.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
