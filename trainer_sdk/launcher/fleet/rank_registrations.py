"""Registers the ranks that a launcher has started, those that come up together in one call.

A rank leaves a note of itself in the run's folder. One that nobody has registered by then does it itself after
:data:`ALONE_AFTER_SECONDS`, so nothing depends on this: it saves a busy fleet API most of the calls of a job's start.
"""

import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import FleetAccess

ALONE_AFTER_SECONDS = 10.0
_GIVE_UP_SECONDS = 9.0
_LOOK_SECONDS = 0.02
_TOGETHER_SECONDS = 0.5
"""How long the first that is up waits for the others, on a machine where they come up one by one."""
_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 1.0
_MOST_AT_ONCE = 1000
# A call that never works: the rank is to say so, which tries for ever.
_FOR_GOOD = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)


def leave_note(process: pb.RankProcess, run_dir: Path) -> bool:
    """Leave word of oneself for the launcher; False when it cannot be written."""
    path = _path(run_dir, process.rank, process.incarnation)
    fresh = path.with_suffix(".new")
    try:
        fresh.write_bytes(process.SerializeToString())
        fresh.replace(path)
    except OSError:
        return False
    return True


class RankRegistrations:
    """The registrations of one launcher's ranks, made on a thread of its own. Methods may come from any thread.

    Args:
        access: The job's way to the fleet API.
        run_dir: Where its ranks leave their notes.
    """

    def __init__(self, access: FleetAccess, run_dir: Path) -> None:
        self._access = access
        self._run_dir = run_dir
        self._awaited: dict[int, tuple[int, float]] = {}
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="evenkeel-rank-registrations", daemon=True)

    def start(self) -> None:
        """Begin, before any rank does: notes of earlier runs are thrown away. Returns at once."""
        for path in self._run_dir.glob("registers-*"):
            path.unlink(missing_ok=True)
        self._thread.start()

    def expect(self, rank: int, incarnation: int) -> None:
        """A rank has a new process, which will leave a note."""
        with self._changed:
            self._awaited[rank] = (incarnation, time.monotonic() + _GIVE_UP_SECONDS)
            self._changed.notify_all()

    def forget(self, rank: int, incarnation: int) -> None:
        """A process has ended, or is registered."""
        with self._changed:
            if self._awaited.get(rank, (None, 0.0))[0] == incarnation:
                del self._awaited[rank]
        _path(self._run_dir, rank, incarnation).unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends within a call's timeout; twice is once."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        while self._pause(_LOOK_SECONDS):
            processes = self._together()[:_MOST_AT_ONCE]
            if not processes:
                continue
            error = self._access.register_ranks(processes)
            if error is None or error.code() in _FOR_GOOD:
                back_off_seconds = _FIRST_BACK_OFF_SECONDS
                for one in processes:
                    self.forget(one.rank, one.incarnation)
                continue
            self._pause(back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _together(self) -> list[pb.RankProcess]:
        """Those that are up; once any is, the others have a moment to be so too."""
        until_seconds = time.monotonic() + _TOGETHER_SECONDS
        while 0 < len(found := self._notes()) < len(self._awaited) and time.monotonic() < until_seconds:
            if not self._pause(_LOOK_SECONDS):
                return []
        return found

    def _pause(self, seconds: float) -> bool:
        """Waits until somebody is awaited, and so long; False when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._awaited)
            self._changed.wait_for(lambda: self._stopped, seconds)
            return not self._stopped

    def _notes(self) -> list[pb.RankProcess]:
        """Of those that are awaited and up."""
        with self._changed:
            awaited = dict(self._awaited)
        found = []
        for rank, (incarnation, until_seconds) in awaited.items():
            path = _path(self._run_dir, rank, incarnation)
            with suppress(OSError):  # it is not up yet
                found.append(pb.RankProcess.FromString(path.read_bytes()))
            if time.monotonic() > until_seconds:
                self.forget(rank, incarnation)
        return found


def _path(run_dir: Path, rank: int, incarnation: int) -> Path:
    return run_dir / f"registers-{rank}-{incarnation}"
