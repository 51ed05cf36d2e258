"""Tells the fleet API of processes that ended, from a background thread; nobody waits for it but the job's end."""

import logging
import queue
import threading
import time

import grpc

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.access import CALL_TIMEOUT_SECONDS, FleetAccess

_TOGETHER_SECONDS = 0.03
"""An error of the program ends all ranks at about the same time: they are told in one call, as one incident."""
_FIRST_BACK_OFF_SECONDS = 0.1
_LONGEST_BACK_OFF_SECONDS = 2.0
_LAST_WORDS_SECONDS = 5.0
"""How long the end of the job waits until the fleet API has heard of the ends of its processes."""
_MOST_AT_ONCE = 1000
_FOR_GOOD = frozenset((grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION))

_logger = logging.getLogger("evenkeel.launcher")


class ExitReports:
    """Exits of one job's processes, told in order and again until they were heard.

    Args:
        access: The job's way to the fleet API.
    """

    def __init__(self, access: FleetAccess) -> None:
        self._access = access
        self._told: queue.SimpleQueue[pb.RankExit | None] = queue.SimpleQueue()
        self._gives_up_at_seconds = float("inf")
        self._thread = threading.Thread(target=self._run, name="evenkeel-exits", daemon=True)

    def start(self) -> None:
        """Begin to tell; returns at once."""
        self._thread.start()

    def tell(self, one: pb.RankExit) -> None:
        """A process ended. Any thread; never blocks."""
        self._told.put(one)

    def stop(self) -> None:
        """Returns once all that was told was heard, or nobody hears for a few seconds."""
        self._gives_up_at_seconds = time.monotonic() + _LAST_WORDS_SECONDS
        self._told.put(None)
        if self._thread.ident is not None:
            self._thread.join(_LAST_WORDS_SECONDS + CALL_TIMEOUT_SECONDS)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            exits: dict[int, pb.RankExit] = {}
            one = self._told.get()
            until_seconds = time.monotonic() + _TOGETHER_SECONDS
            while one is not None and len(exits) < _MOST_AT_ONCE:
                exits[one.rank] = one
                try:
                    one = self._told.get(timeout=max(0.0, until_seconds - time.monotonic()))
                except queue.Empty:
                    break
                if one is not None and one.rank in exits:  # its next process; a call names each rank once
                    self._report(exits)
                    exits = {}
            goes_on = one is not None
            if exits:
                self._report(exits)

    def _report(self, exits: dict[int, pb.RankExit]) -> None:
        back_off_seconds = _FIRST_BACK_OFF_SECONDS
        while True:
            error = self._access.report_exits(list(exits.values()))
            over = time.monotonic() > self._gives_up_at_seconds
            if error is None:
                return
            if over or error.code() in _FOR_GOOD:
                _logger.warning(
                    "the fleet API was not told how ranks %s ended: %s", sorted(exits), error.details() or error.code()
                )
                return
            # Mostly the job is not known yet: it is registered at the same time.
            time.sleep(back_off_seconds)
            back_off_seconds = min(back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)
