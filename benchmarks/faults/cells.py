"""The grid: which ranks fail how, and which service beside them. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

FIRST_STAGE, TENSOR_PEER, LAST_STAGE = 0, 1, 7
PAIRS = {"one node": (0, 3), "two nodes": (1, 6)}
"""Of the job's two nodes of four devices each."""
SERVICES = ("telemetry", "detector", "scheduler", "kafka", "postgres")
FROZEN_SECONDS = 5.0


class Fault(StrEnum):
    """What happens to a rank or to a server."""

    KILL = "kill"
    STOP = "stop"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of case.

    Attributes:
        ranks: Who fails, in order; several within a second.
        fault: How they do.
        service: Which service or server fails first, within a second; empty = none. ``scheduler`` is the one in charge.
        how: KILL or, for :data:`FROZEN_SECONDS`, STOP.
        both: Its second instance fails with it.
    """

    ranks: tuple[int, ...] = ()
    fault: Fault = Fault.KILL
    service: str = ""
    how: Fault = Fault.KILL
    both: bool = False

    def __str__(self) -> str:
        whom = " + ".join(f"rank {rank}" for rank in self.ranks)
        service = f"{self.how} {'both of ' if self.both else ''}{self.service}" if self.service else ""
        return ", ".join(filter(None, (service, f"{self.fault} {whom}" if whom else "")))


def grid() -> tuple[Cell, ...]:
    """Every cell once: ranks alone, pairs, services alone, and with a rank."""
    return tuple(_cells())


def _cells() -> Iterator[Cell]:
    for fault in Fault:
        for rank in (FIRST_STAGE, TENSOR_PEER, LAST_STAGE):
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
            yield cell, rng.uniform(0.0, 2.0), rng.uniform(0.0, 1.0)
