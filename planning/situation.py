"""What a planner is asked about: the layout in force, who is alive and how fast, and what things cost."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.cost_model import BY_ORDERS, CostModel
from evenkeel.planning.costs.links import SlowLink, border_factors
from evenkeel.planning.costs.looks import Looks
from evenkeel.planning.costs.memory import activation_peak, hosts_peak, replica_peaks
from evenkeel.planning.costs.price import Price, Prices, TransitionCosts
from evenkeel.planning.costs.usual_shape import usual_shape
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.pipelined.pipeline_bound import pipeline_bound
from evenkeel.planning.pipelined.routed import slowest_replica
from evenkeel.planning.pipelined.virtual import bare, has_orders, ordered_makespan

_ROUNDED = 1.0 - 1e-9
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Situation:
    """One question to the planner.

    Attributes:
        layout: Layout in force; may name dead ranks.
        home: The job's full shape, with which it was registered, without its routes if it had any, and with one stage a
            rank.
        throughputs: Throughput of every rank that may be used, each above 0. Who is not in here is dead.
        cost: Predicts iterations.
        transition: Constants of transitions.
        holders: Live ranks that hold their slices of ``layout``; a rejoined rank is alive and holds nothing.
        device_bytes: Memory of a device that the job may fill; None = not known.
        domains: Where each rank is (its node, its scale-up domain); ranks that are not in it are nowhere known.
        links: Slow ones; all others are as the workload says.
        with_orders: The full shape with the orders of its replicas, if it has any; found in ``home``.
        looks: What was asked before.
        speeds: Throughputs of all ranks that were asked about, also of spares that are left out.
    """

    layout: Layout
    home: Layout
    throughputs: Mapping[int, float]
    cost: CostModel
    holders: frozenset[int]
    transition: TransitionCosts = field(default_factory=TransitionCosts)
    device_bytes: float | None = None
    domains: Mapping[int, int | str] = field(default_factory=dict)
    links: tuple[SlowLink, ...] = ()
    with_orders: Layout | None = None
    looks: Looks = field(default_factory=Looks, init=False, repr=False)
    speeds: Mapping[int, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.throughputs and not 0.0 < min(self.throughputs.values()) <= max(self.throughputs.values()) <= 16.0:
            bad = {rank: p for rank, p in self.throughputs.items() if not 0.0 < p <= 16.0}
            raise ValueError(f"throughputs {bad}: each must be above 0 (leave dead ranks out) and at most 16")
        if has_orders(self.home):
            object.__setattr__(self, "with_orders", replace(self.home, routes=()))
        object.__setattr__(self, "home", bare(self.home))
        object.__setattr__(self, "speeds", self.throughputs)
        if self.device_bytes is not None and not self.device_bytes > 0.0:
            raise ValueError(f"device_bytes is {self.device_bytes}: it must be above 0")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by what it was made of: what was looked at is told apart by objects of this process."""
        made_of = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return partial(Situation, **made_of), ()

    def without(self, spares: Collection[int]) -> "Situation":
        """The question without some of the ranks that have no place in the layout in force.

        What was looked at is shared: it does not hang on who else is there.
        """
        live = {rank: p for rank, p in self.throughputs.items() if rank not in spares}
        fewer = replace(self, throughputs=live)
        for name in ("looks", "speeds"):
            object.__setattr__(fewer, name, getattr(self, name))
        return fewer

    @cached_property
    def dead(self) -> tuple[int, ...]:
        """Ranks that hold a position and cannot be used."""
        return tuple([rank for rank in self.layout.ranks if rank not in self.throughputs])

    @cached_property
    def may_have_orders(self) -> bool:
        """Whether layouts with orders come up at all."""
        return self.home.interleavable or self.with_orders is not None or has_orders(self.layout)

    @cached_property
    def wary(self) -> "Situation":
        """The question as the solver asks it: what stages wider than the full shape's may cost is in the seconds."""
        if self.cost.usual is not None:
            return self
        wary = replace(self, cost=replace(self.cost, usual=usual_shape(self.home)))
        vars(wary)["prices"] = self.prices  # whatever seconds are, the same bytes move
        return wary

    @cached_property
    def full_width(self) -> int:
        """Shards of the widest stage of the full shape."""
        return max([len(stage.ranks) for stage in self.home.replicas[0].stages])

    @property
    def proportional_bound(self) -> float:
        """Sum of live throughputs, each at most 1, over the number of devices of the full shape."""
        num_devices = len(self.home.ranks) + len(self.home.standbys)
        return sum([min(1.0, p) for p in self.throughputs.values()]) / num_devices

    @property
    def idle_seconds(self) -> float:
        """Seconds per iteration when nothing is done; 0 when nothing cannot be done."""
        return 0.0 if self.dead else self.seconds(self.layout)

    @cached_property
    def all_is_well(self) -> bool:
        """True when every rank of the full shape is healthy, and so are all links."""
        return not self.links and all(self.throughputs.get(r, 0.0) >= 1.0 for r in self.home.ranks)

    @cached_property
    def well(self) -> "Situation":
        """The question of the full shape with every device healthy."""
        everybody = dict.fromkeys(self.home.ranks, 1.0)
        return replace(self, layout=self.home, throughputs=everybody, links=())

    @property
    def healthy_seconds(self) -> float:
        """Seconds per iteration of the full shape with every device healthy, under the best schedule it may have."""
        home = self.home
        return min([self.well.seconds(replace(home, schedule=name)) for name in (home.schedule, *home.schedules)])

    def alike(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The first stages that came of the same blocks, shares, speeds and slow links: what they take these take."""
        return self.looks.once("alike", of=(stages,), find=lambda: self._first_alike(stages))

    def _first_alike(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        ranks = [rank for stage in stages for rank in stage.ranks]
        shape = tuple([(stage.stop_block, stage.shares) for stage in stages])
        speeds, place = tuple([self.speeds[rank] for rank in ranks]), {rank: i for i, rank in enumerate(ranks)}
        within = [link for link in self.links if all(rank in place for rank in link.ranks)]
        links = tuple([(*[place[rank] for rank in link.ranks], link.factor) for link in within])
        return self.looks.once("first", shape, speeds, links, find=lambda: stages)

    def makespan(self, stages: tuple[Stage, ...], num_micro_batches: int, schedule: str) -> float:
        """:meth:`CostModel.makespan` with the throughputs of this situation; what was asked once is known."""
        alike = self.alike(stages)
        return self.looks.once(
            "makespan",
            num_micro_batches,
            schedule,
            of=(alike,),
            find=lambda: pipeline_makespan(
                self.parts(alike, schedule), num_micro_batches, self.border_seconds(alike, schedule)
            ),
        )

    def border_seconds(self, stages: tuple[Stage, ...], schedule: str) -> _Floats:
        """[stages - 1] seconds of transfers; slow links are known only to the plain schedule."""
        if self.links and schedule == "1f1b":
            return np.array(border_factors(self.links, stages)) * self.cost.workload.transfer_seconds
        return self.cost.border_seconds(len(stages))

    def least_makespan(self, parts: _Floats, num_micro_batches: int, schedule: str, limit: float = math.inf) -> float:
        """Seconds that :meth:`makespan` does not get below, found much sooner; 0 where nothing is known.

        Args:
            parts: [stages, 3] seconds of one micro-batch, as :func:`pipeline_bound` takes them.
            num_micro_batches: The replica's quota.
            schedule: Name of the schedule.
            limit: Once it takes longer than that, by how much does not matter.
        """
        if schedule != "1f1b" or not num_micro_batches:
            return 0.0
        least, most = self.cost.forward_parts
        transfer = self.cost.workload.transfer_seconds
        return pipeline_bound(parts, 0, 0.0, num_micro_batches, most, 1.0 - least, transfer, limit)[0] * _ROUNDED

    def parts(self, stages: tuple[Stage, ...], schedule: str) -> _Floats:
        """[stages, 3]: :meth:`CostModel.parts` of each stage; the same array for the same question."""
        return self.looks.once(
            "parts",
            schedule,
            of=(stages,),
            find=lambda: np.array([self.cost.parts(stage, self.speeds, schedule) for stage in stages]),
        )

    def seconds(self, layout: Layout) -> float:
        """Predicted seconds per iteration of a layout of live ranks."""
        replicas, schedule = layout.replicas, layout.schedule
        slowest = slowest_replica(
            layout,
            lambda d: self.parts(replicas[d].stages, schedule).tolist(),
            lambda d: self._replica_seconds(replicas[d], schedule),
            self.cost.workload.transfer_seconds,
        )
        return self.cost.total(slowest, self.cost.gradients.seconds([replica.stages for replica in replicas]))

    def _replica_seconds(self, replica: Replica, schedule: str) -> float:
        if replica.orders:
            return self.ordered_seconds(replica)
        return self.makespan(replica.stages, replica.num_micro_batches, schedule)

    def ordered_seconds(self, replica: Replica) -> float:
        """Seconds of the pipeline of a replica with orders, whatever the schedule; links as they are."""
        factors = border_factors(self.links, replica.stages) if self.links else ()
        parts = self.parts(replica.stages, BY_ORDERS).tolist()
        return ordered_makespan(replica, parts, self.cost.workload.transfer_seconds, factors)

    @cached_property
    def home_activations(self) -> float:
        """Most activations that a stage of the full shape holds at a time, as :func:`activation_peak` counts them."""
        kinds = {(r.num_micro_batches, *[s.stop_block for s in r.stages]): r for r in self.home.replicas}
        return max([activation_peak(self.cost.model, kind, self.home.schedule) for kind in kinds.values()])

    def excess_bytes(self, layout: Layout) -> float:
        """Bytes that the fullest device of a layout has too little memory for; 0 = it fits, or no limit is known.

        A mix may make some micro-batches larger; they are taken to be as large as it allows.
        """
        if self.device_bytes is None:
            return 0.0
        scale = 1.0 if layout.mix is None else layout.mix.max_scale
        peak = max([self._peak(replica, scale, layout.schedule) for replica in layout.replicas])
        return max(0.0, peak - self.device_bytes, hosts_peak(self.cost.model, layout, scale) - self.device_bytes)

    def replica_excess_bytes(self, replica: Replica, schedule: str = "1f1b") -> float:
        """Bytes that the fullest device of a replica has too little memory for, with the largest micro-batches."""
        if self.device_bytes is None:
            return 0.0
        return max(0.0, self._peak(replica, self.largest_scale, schedule) - self.device_bytes)

    def _peak(self, replica: Replica, scale: float, schedule: str) -> float:
        """Bytes of the fullest device of a replica."""
        return self.looks.once(
            "peak",
            scale,
            schedule,
            of=(replica,),
            find=lambda: max(replica_peaks(self.cost.model, replica, scale, schedule)),
        )

    @cached_property
    def keeps_domains(self) -> bool:
        """Whether stages that a plan forms anew must lie in one domain each: most of the full shape's do.

        Tensor groups exchange data in every block, which the cost model takes to be as fast as within a domain.
        """
        if not self.domains:
            return False
        groups = [{self.domains.get(rank) for rank in s.ranks} for r in self.home.replicas for s in r.stages]
        return 2 * sum([len(group - {None}) > 1 for group in groups]) < len(groups)

    def domain(self, rank: int) -> int | str:
        """Only ranks for which this is the same may be put into one stage; the same for all where that is free."""
        return self.domains.get(rank, "") if self.keeps_domains else ""

    @property
    def largest_scale(self) -> float:
        """Size of the largest micro-batches that a plan may make, 1 = as registered."""
        return 1.0 if self.home.mix is None else self.home.mix.max_scale

    def price(self, layout: Layout) -> Price:
        """What going to ``layout`` costs."""
        return self.prices.of(layout)

    @cached_property
    def prices(self) -> Prices:
        """What going from the layout in force to others costs."""
        return Prices(self.cost.model, self.layout, self.holders, self.transition)
