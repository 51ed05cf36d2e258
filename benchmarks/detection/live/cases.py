"""What is run: loops, what is done to one of their ranks, and what else the machine does meanwhile. Pure."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self


class Loop(StrEnum):
    """How the ranks train."""

    DDP = "ddp"
    FSDP2 = "fsdp2"
    HF = "hf"
    ENGINE = "engine"


class Fault(StrEnum):
    """What is done to a rank; the last three are healthy by definition: so it was from the beginning on."""

    NONE = "none"
    WORK = "work"
    SLEEP = "sleep"
    QUOTA = "quota"
    STOPS = "stops"
    HOG = "hog"
    INPUT = "input"
    SLOWER = "slower_by_nature"
    NOISY = "noisy"
    SWITCHES = "noise_that_switches"

    @property
    def is_healthy(self) -> bool:
        """Nobody may be accused."""
        return self in (Fault.NONE, Fault.SLOWER, Fault.NOISY, Fault.SWITCHES)


class Load(StrEnum):
    """What runs beside: nothing, three times as many busy programs as there are cores, or those now and then."""

    QUIET = "quiet"
    BUSY = "busy"
    COMES_AND_GOES = "comes_and_goes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job.

    Attributes:
        loop: How its ranks train.
        ranks: How many.
        fault: What is done to one of them.
        factor: Times its own work (work, hog), or times the iteration (sleep, quota, stops, input).
        culprit: The rank.
        begin: First iteration of the fault.
        end: The first after it.
        iterations: Of the whole job.
        load: What runs beside.
        seed: Of what is random.
    """

    loop: Loop
    ranks: int
    fault: Fault = Fault.NONE
    factor: float = 1.0
    culprit: int = 1
    begin: int = 200
    end: int = 300
    iterations: int = 300
    load: Load = Load.QUIET
    seed: int = 0

    @property
    def name(self) -> str:
        """Says all that differs between cases."""
        what = self.fault.value + (f"_{100 * self.factor:.0f}" if self.factor > 1 else "")
        when = "" if self.begin else "_from_start"
        until = "_back" if self.end < self.iterations and not self.fault.is_healthy else ""
        beside = "" if self.load is Load.QUIET else f"_{self.load.value}"
        return f"{self.loop.value}_{self.ranks}_{what}{when}{until}{beside}" + (f"_{self.seed}" if self.seed else "")

    def as_json(self) -> str:
        """For the command line of a rank."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`as_json` wrote."""
        values = json.loads(text)
        named = {"loop": Loop(values["loop"]), "fault": Fault(values["fault"]), "load": Load(values["load"])}
        return cls(**values | named)


JOBS = ((Loop.DDP, 2), (Loop.DDP, 4), (Loop.DDP, 8), (Loop.FSDP2, 2), (Loop.HF, 2), (Loop.ENGINE, 2))
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
OTHER_FAULTS = (Fault.SLEEP, Fault.QUOTA, Fault.STOPS, Fault.HOG, Fault.INPUT)


def all_cases(healthy_iterations: int) -> Iterator[Case]:
    """Every case once.

    Args:
        healthy_iterations: Of each job that nothing is done to.
    """
    for load in (Load.QUIET, Load.BUSY):
        for loop, ranks in JOBS:
            for factor in FACTORS if load is Load.QUIET else (1.25, 2.0):
                yield Case(loop=loop, ranks=ranks, fault=Fault.WORK, factor=factor, load=load)
        for fault in OTHER_FAULTS:
            for factor in (1.25, 1.5, 2.0) if load is Load.QUIET else (1.5,):
                yield Case(loop=Loop.DDP, ranks=2, fault=fault, factor=factor, load=load, culprit=0)
    for ranks in (2, 4):
        yield Case(loop=Loop.DDP, ranks=ranks, fault=Fault.WORK, factor=2.0, begin=0)
    for fault in (Fault.WORK, Fault.SLEEP, Fault.QUOTA):
        yield Case(loop=Loop.DDP, ranks=2, fault=fault, factor=1.5, end=260, iterations=400)
    yield from healthy_cases(healthy_iterations)


def healthy_cases(iterations: int) -> Iterator[Case]:
    """Jobs of which nobody may be accused."""
    for load in Load:
        for loop, ranks in JOBS if load is Load.QUIET else JOBS[:2]:
            yield Case(loop=loop, ranks=ranks, iterations=iterations, load=load)
    for fault in (Fault.SLOWER, Fault.NOISY, Fault.SWITCHES):
        for ranks in (2, 4):
            yield Case(loop=Loop.DDP, ranks=ranks, fault=fault, culprit=0, iterations=iterations)


QUICK = (
    Case(loop=Loop.DDP, ranks=2, fault=Fault.WORK, factor=1.25),
    Case(loop=Loop.FSDP2, ranks=2, fault=Fault.WORK, factor=1.5),
    Case(loop=Loop.HF, ranks=2, fault=Fault.WORK, factor=1.5),
    Case(loop=Loop.ENGINE, ranks=2, fault=Fault.WORK, factor=1.5),
    Case(loop=Loop.DDP, ranks=2, fault=Fault.SLEEP, factor=1.5, end=250, culprit=0),
    Case(loop=Loop.DDP, ranks=2, fault=Fault.QUOTA, factor=2.0),
    Case(loop=Loop.DDP, ranks=2, fault=Fault.STOPS, factor=1.5),
    Case(loop=Loop.DDP, ranks=2, iterations=600),
)
"""A few minutes' worth."""
