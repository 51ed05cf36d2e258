"""Ranks that fail by themselves at a named moment: their entry point, and the table that says who fails when and how.

A rank looks before it waits, and once it computes: who hangs in a wait could not be told from those who wait for it.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks.faults.cells import Fault, When
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.rank_table import RankTable
from evenkeel.trainer_sdk.elastic.copies.disk_copies import DiskCopies
from evenkeel.trainer_sdk.elastic.state.transition import Transition
from evenkeel.trainer_sdk.elastic.worker import train as train_on
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.delivery import Delivery
from evenkeel.trainer_sdk.launcher.processes.context import RankContext

ENTRY_POINT = "benchmarks.faults.strikes:train"
FILE_NAME = "strikes"


_METHODS: dict[When, tuple[type, str]] = {
    When.CHECKPOINT: (DiskCopies, "_write"),
    When.PREPARE: (Mailbox, "prepare"),
    When.SWITCH: (Transition, "follow"),
    When.CONNECT: (GroupBuilder, "connect"),
    When.EXCHANGE: (Delivery, "exchange"),
    When.GATHER: (Assembly, "gather"),
}
"""Moments that no progress mark tells, and what begins with them."""
_PHASES = {str(when) for when in When if when not in _METHODS}


class StruckError(RuntimeError):
    """What a rank raises that is to fail by an exception."""


class StrikeTable(RankTable):
    """The moment at which each rank is to fail, and how; a strike that came is no longer in it."""

    WHAT = "table of strikes"
    PER_RANK = 2  # number of the moment from 1, 0 = none; number of the fault from 1, 0 = none

    def arm(self, rank: int, when: When, fault: Fault | None) -> None:
        """Let the rank's process fail when it gets there; None: it goes on, and it is known that it got there."""
        self._values[2 * rank + 1] = 0 if fault is None else 1 + list(Fault).index(fault)
        self._values[2 * rank] = 1 + list(When).index(when)

    def is_armed(self, rank: int) -> bool:
        """Whether it has not got there yet."""
        return self._values[2 * rank] != 0.0

    def disarm(self, rank: int) -> bool:
        """Let nothing happen any more; whether it had not got there yet."""
        was_armed, self._values[2 * rank] = self.is_armed(rank), 0.0
        return was_armed

    def take(self, rank: int, when: When) -> Fault | None:
        """How the rank fails now, if it does."""
        if self._values[2 * rank] != 1 + list(When).index(when):
            return None
        self._values[2 * rank] = 0.0
        number = int(self._values[2 * rank + 1])
        return list(Fault)[number - 1] if number else None


def strike(fault: Fault) -> None:
    """Fail, in the thread that calls."""
    if fault in (Fault.KILL, Fault.STOP):
        os.kill(os.getpid(), signal.SIGKILL if fault is Fault.KILL else signal.SIGSTOP)
    elif fault is Fault.HANG:
        while True:
            time.sleep(3600.0)
    elif fault is Fault.EXCEPTION:
        raise StruckError("this rank fails on purpose")


def train(context: RankContext) -> None:
    """The engine's training, which fails where the table says."""
    table, rank = StrikeTable(context.run_dir / FILE_NAME), context.rank

    def reached(when: When) -> None:
        if (fault := table.take(rank, when)) is not None:
            strike(fault)

    for when, (owner, name) in _METHODS.items():
        setattr(owner, name, _after(reached, when, getattr(owner, name)))
    compute, wait = Phases.compute, Phases.wait

    def struck_compute(phases: Phases, kind: ComputeKind) -> None:
        compute(phases, kind)
        if kind in _PHASES:
            reached(When(kind))

    def struck_wait(phases: Phases, what: str, waiting_for: tuple[int, ...] = ()) -> None:
        if f"wait:{what}" in _PHASES:
            reached(When(f"wait:{what}"))
        wait(phases, what, waiting_for)

    # Not where the marks are made: what goes wrong there is kept out of the loop.
    setattr(Phases, "compute", struck_compute)  # noqa: B010 - a method takes no assignment in strict types
    setattr(Phases, "wait", struck_wait)  # noqa: B010 - as above
    train_on(context)


def _after(reached: Callable[[When], None], when: When, method: Callable[..., Any]) -> Callable[..., Any]:
    def struck(*arguments: Any, **options: Any) -> Any:
        reached(when)
        return method(*arguments, **options)

    return struck
