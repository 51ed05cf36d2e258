"""The grid: which ranks fail how and when, and which service beside them. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What happens to a rank or to a server."""

    KILL = "kill"
    STOP = "stop"
    HANG = "hang"
    EXCEPTION = "exception"
    HALF_SPEED = "half speed"


class When(StrEnum):
    """A moment of an iteration, or of a plan; some are the progress mark's words."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCTION = "wait:gradient"
    VOTE = "wait:vote"
    CHECKPOINT = "checkpoint"
    PREPARE = "prepare"
    SWITCH = "switch"
    CONNECT = "connect"
    EXCHANGE = "exchange"
    GATHER = "gather"

    @property
    def is_of_a_plan(self) -> bool:
        """Whether it comes only when a plan does."""
        return self in (When.PREPARE, When.SWITCH, When.CONNECT, When.EXCHANGE, When.GATHER)


FIRST_STAGE, TENSOR_PEER, LAST_STAGE = 0, 1, 7
ANOTHER = {FIRST_STAGE: 6, TENSOR_PEER: 4, LAST_STAGE: 2}
"""Whose death brings the plan in which a rank fails."""
PAIRS = {"one node": (0, 3), "two nodes": (1, 6), "one position": (2, 6)}
"""Of the job's two nodes of four devices each; the last two are each other's replica."""
SERVICES = ("telemetry", "detector", "scheduler", "kafka", "postgres")
FROZEN_SECONDS = 5.0
_FAILING = (Fault.KILL, Fault.STOP, Fault.HANG, Fault.EXCEPTION)
_WHOLE, _BESIDE = (Fault.KILL, Fault.STOP), (When.PREPARE, When.CHECKPOINT)
"""What is done beside the training thread: only the whole process can fail there."""
_NOT_OF_JOINERS = (When.CHECKPOINT, When.GATHER)
"""A joiner trains before it writes a checkpoint, and a plan at a border has no sums to gather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of case.

    Attributes:
        ranks: Who fails, in order; several within a second.
        fault: How they do.
        when: At which moment the last of them does; None = at any.
        joins: It is a replacement that fails, on its way back into the job.
        service: Which service or server fails first, within a second; empty = none. ``scheduler`` is the one in charge.
        witness: The service fails as this rank, which goes on, gets to the moment.
        how: KILL or, for :data:`FROZEN_SECONDS`, STOP.
        both: Its second instance fails with it.
    """

    ranks: tuple[int, ...] = ()
    fault: Fault = Fault.KILL
    when: When | None = None
    joins: bool = False
    service: str = ""
    witness: int | None = None
    how: Fault = Fault.KILL
    both: bool = False

    def __str__(self) -> str:
        whom = " + ".join(f"rank {rank}" for rank in self.ranks)
        moment = "" if self.when is None else f" at {self.when}{' as it comes back' if self.joins else ''}"
        service = f"{self.how} {'both of ' if self.both else ''}{self.service}" if self.service else ""
        if self.witness is not None:
            service, moment = f"{service} with rank {self.witness}{moment}", ""
        return ", ".join(filter(None, (service, f"{self.fault} {whom}{moment}" if whom else "")))


def grid() -> tuple[Cell, ...]:
    """Every cell once: ranks at moments of an iteration and of a plan, joiners, pairs, services, both together."""
    return (*_moments(), *_joiners(), *_in_charge(), *_others())


def _moments() -> Iterator[Cell]:
    for rank, another in ANOTHER.items():
        for when in When:
            for fault in _WHOLE if when in _BESIDE else _FAILING:
                yield Cell(ranks=(another, rank) if when.is_of_a_plan else (rank,), fault=fault, when=when)


def _joiners() -> Iterator[Cell]:
    for rank in (TENSOR_PEER, LAST_STAGE):
        for when in When:
            if when not in _NOT_OF_JOINERS:
                for fault in _WHOLE if when in _BESIDE else (Fault.KILL, Fault.EXCEPTION):
                    yield Cell(ranks=(rank,), fault=fault, when=when, joins=True)


def _in_charge() -> Iterator[Cell]:
    """The scheduler in the middle of what it does about a rank's death."""
    for when in When:
        if when.is_of_a_plan:
            for how in (Fault.KILL, Fault.STOP):
                yield Cell(ranks=(ANOTHER[TENSOR_PEER],), when=when, witness=TENSOR_PEER, service="scheduler", how=how)


def _others() -> Iterator[Cell]:
    for fault in (Fault.KILL, Fault.STOP, Fault.HANG, Fault.HALF_SPEED):
        for rank in ANOTHER:
            yield Cell(ranks=(rank,), fault=fault)
    for pair in PAIRS.values():
        yield Cell(ranks=pair)
    for ranks in ((), (TENSOR_PEER,)):
        for service in SERVICES:
            for how in (Fault.KILL, Fault.STOP):
                yield Cell(ranks=ranks, service=service, how=how)
        yield Cell(ranks=ranks, service="scheduler", both=True)


def cases(num_rounds: int, seed: int, only: str = "") -> Iterator[tuple[Cell, float, float]]:
    """Cells in an order of their own each round, with the seconds before the first fault and between two.

    Args:
        num_rounds: How often each cell comes.
        seed: Decides order and moments.
        only: Cells whose words contain this.
    """
    rng = random.Random(seed)
    for _ in range(num_rounds):
        wanted = [cell for cell in grid() if only in str(cell)]
        rng.shuffle(wanted)
        for cell in wanted:
            yield cell, rng.uniform(0.0, 1.0), rng.uniform(0.0, 1.0)
