"""What a planner is asked about: the layout in force, who is alive and how fast, and what things cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from layouts.layout import Layout
from services.scheduler.planning.cost_model import CostModel
from services.scheduler.planning.price import Price, TransitionCosts, price_of

RISK_MARGIN = 0.04
"""Relative gain that a structural risk must bring; a guess until memory and collectives are modelled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """One question to the planner.

    Attributes:
        layout: Layout in force; may name dead ranks.
        home: The job's full shape, with which it was registered.
        throughputs: Throughput of every rank that may be used, each above 0. Who is not in here is dead.
        cost: Predicts iterations.
        transition: Constants of transitions.
        holders: Live ranks that hold their slices of ``layout``; a rejoined rank is alive and holds nothing.
    """

    layout: Layout
    home: Layout
    throughputs: Mapping[int, float]
    cost: CostModel
    holders: frozenset[int]
    transition: TransitionCosts = field(default_factory=TransitionCosts)

    def __post_init__(self) -> None:
        bad = {rank: p for rank, p in self.throughputs.items() if not 0.0 < p <= 16.0}
        if bad:
            raise ValueError(f"throughputs {bad}: each must be above 0 (leave dead ranks out) and at most 16")

    @property
    def dead(self) -> tuple[int, ...]:
        """Ranks that hold a position and cannot be used."""
        return tuple(rank for rank in self.layout.ranks if rank not in self.throughputs)

    @property
    def proportional_bound(self) -> float:
        """Sum of live throughputs, each at most 1, over the number of devices of the full shape."""
        num_devices = len(self.home.ranks) + len(self.home.standbys)
        return sum(min(1.0, p) for p in self.throughputs.values()) / num_devices

    @property
    def idle_seconds(self) -> float:
        """Seconds per iteration when nothing is done; 0 when nothing cannot be done."""
        return 0.0 if self.dead else self.cost.iteration_seconds(self.layout, self.throughputs)

    @property
    def healthy_seconds(self) -> float:
        """Seconds per iteration of the full shape with every device healthy."""
        return self.cost.iteration_seconds(self.home, dict.fromkeys(self.home.ranks, 1.0))

    def judged_seconds(self, layout: Layout) -> float:
        """Predicted seconds per iteration, plus a margin for each structural risk that the cost model does not see.

        A replica less costs redundancy, a merged stage memory, a stage wider than the full shape's collectives: such a
        layout must be faster by the margin to be preferred.
        """
        num_risks = max(0, len(self.home.replicas) - len(layout.replicas))
        full_width = max(len(stage.ranks) for replica in self.home.replicas for stage in replica.stages)
        num_stages = min(len(replica.stages) for replica in self.home.replicas)
        for replica in layout.replicas:
            num_risks += max(0, num_stages - len(replica.stages))
            num_risks += sum(1 for stage in replica.stages if len(stage.ranks) > full_width)
        seconds = self.cost.iteration_seconds(layout, self.throughputs)
        return seconds * (1.0 + RISK_MARGIN * num_risks)

    def price(self, layout: Layout) -> Price:
        """What going to ``layout`` costs."""
        return price_of(self.cost.model, self.layout, layout, self.holders, self.transition)
