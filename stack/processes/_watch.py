"""The watchdog's process: ends the processes it was told of when its owner is gone.

:mod:`evenkeel.stack.processes.watchdog` runs it.

Lines on standard input: ``add <process id> <signal>`` and ``remove <process id>``. It imports little: it must cost
nothing while all is well.
"""

import os
import select
import signal
import sys

from evenkeel.stack.processes.pids import end_processes

# A process forked off the owner may keep the pipe open, so the owner's death is looked for as well.
POLL_SECONDS = 0.25
GRACE_SECONDS = 3.0


def watch(input_descriptor: int, owner_id: int) -> dict[int, int]:
    """Reads lines until the owner is gone; returns what is then to be ended, process id to signal."""
    watched: dict[int, int] = {}
    pending = b""
    while True:
        # Asked before the look into the pipe: what the owner wrote last is there by then.
        is_orphan = os.getppid() != owner_id
        ready, _, _ = select.select([input_descriptor], [], [], 0.0 if is_orphan else POLL_SECONDS)
        if not ready:
            if is_orphan:
                return watched
            continue
        chunk = os.read(input_descriptor, 4096)
        if not chunk:
            return watched
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            verb, process_id, *stop_signal = line.split()
            if verb == b"add":
                watched[int(process_id)] = int(stop_signal[0])
            else:
                watched.pop(int(process_id), None)


def main() -> int:
    """Watches until the owner is gone, then ends what is left."""
    # Ctrl-C and a closing terminal are the owner's business; this process ends after the owner, never before.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watched = watch(sys.stdin.fileno(), int(sys.argv[1]))
    # The newest first: services before the servers that they talk to.
    end_processes(reversed(watched.items()), grace_seconds=GRACE_SECONDS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
