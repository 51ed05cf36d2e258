"""The port that every system implements: what it is asked, what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Constants of the machine park, the same for every system.

    Attributes:
        transition: Building groups, and bytes per second into one rank.
        restart_seconds: Stopping and starting a whole job, loading its checkpoint included.
        checkpoint_seconds: Between checkpoints.
        device_bytes: Memory of a device that a job may fill with its state.
        replacement_seconds: Part of a synchronous restart that has passed when a replacement is there.
    """

    transition: TransitionCosts = field(
        default_factory=lambda: TransitionCosts(group_seconds=2.0, bytes_per_second=1e10)
    )
    restart_seconds: float = 180.0
    checkpoint_seconds: float = 1800.0
    device_bytes: float = 64e9
    replacement_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a system knows when it is asked.

    Attributes:
        at_seconds: Now.
        home: The full shape of the job.
        current: How it runs; None when it has been stopped.
        throughputs: Estimated speed of each live device.
        cost: Cost model, the same for every system and for the truth.
        topology: Nodes and racks.
        costs: Constants.
        slow_since_seconds: When the oldest slowdown that is known was noticed; None when nobody is slow.
        links: Slow links that are known.
    """

    at_seconds: float
    home: Layout
    current: Operation | None
    throughputs: Mapping[int, float]
    cost: CostModel
    topology: Topology
    costs: Costs
    slow_since_seconds: float | None = None
    links: tuple[SlowLink, ...] = ()

    @property
    def anybody_slow(self) -> bool:
        """True when some live device of the job is known to be slow."""
        return any(self.throughputs.get(rank, 1.0) < 1.0 for rank in self.home.ranks)

    @property
    def current_is_dead(self) -> bool:
        """True when the job cannot go on as it runs."""
        return self.current is None or not self.current.ranks <= self.throughputs.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a system does.

    Attributes:
        operation: How the job runs from now on; None = it cannot run with what is left.
        pause_seconds: Training time that the change costs, work done twice included.
        ask_again_seconds: It wants to be asked again after so long; None = at the next verdict.
        reruns_iteration: An iteration that a death cut costs time in addition to the pause.
        keeps_sums: Survivors keep what they have done of it; else it is done again from its start.
    """

    operation: Operation | None
    pause_seconds: float = 0.0
    ask_again_seconds: float | None = None
    reruns_iteration: bool = True
    keeps_sums: bool = False


class Strategy(Protocol):
    """One system. Pure: the same question has the same answer.

    Attributes:
        name: As in tables and scenarios.
    """

    name: str

    def answer(self, question: Question) -> Answer:
        """What to do now. Called at every verdict, of a failure as well as of a return."""
        ...
