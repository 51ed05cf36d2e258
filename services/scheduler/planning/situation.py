"""What a planner is asked about: the layout in force, who is alive and how fast, and what things cost."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from layouts.layout import Layout, Replica, Stage
from layouts.schedules import SPLIT_BACKWARD
from services.scheduler.planning.cost_model import SHORT_WAY, CostModel, replica_makespan, slowest_seconds
from services.scheduler.planning.healthy import healthy_seconds
from services.scheduler.planning.links import SlowLink, border_factors
from services.scheduler.planning.makespan import near, pipeline_makespans
from services.scheduler.planning.memory import activation_peak, layout_peak, most_held, replica_peaks
from services.scheduler.planning.pipeline_bound import pipeline_bound
from services.scheduler.planning.price import Price, TransitionCosts, price_of
from services.scheduler.planning.replay import Replay
from services.scheduler.planning.routed import slowest_routed
from services.scheduler.planning.usual_shape import usual_shape
from services.scheduler.planning.virtual import bare, has_orders, ordered_makespan, programs_of

RISK_MARGIN = 0.04
"""Relative gain that a structural risk must bring; a guess until memory and collectives are modelled."""

_MOST_FILLED = 1.25
_BY_ORDERS = "zb-h1"  # orders have both parts of a backward, as this schedule has
_ROUNDED = 1.0 - 1e-9
_SHARED = ("cuts", "placed", "_parts", "_borders", "_by_speeds", "_makespans", "_healthy", "_peaks")
_Floats = npt.NDArray[np.float64]
_Replicas = tuple[Replica, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
        dead: Ranks that hold a position and cannot be used.
        with_orders: The full shape with the orders of its replicas, if it has any; found in ``home``.
        may_have_orders: Whether layouts with orders come up at all.
        cuts: Best cuts of stages that were asked for (:mod:`services.scheduler.planning.levers.tensor_width`).
        placed: Where further shards went best (:mod:`services.scheduler.planning.levers.standby`).
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
    dead: tuple[int, ...] = field(init=False)
    may_have_orders: bool = field(init=False, repr=False)
    cuts: dict[object, tuple[tuple[int, ...], tuple[int, ...]] | None] = field(init=False, repr=False)
    placed: dict[tuple[int, str, int], tuple[_Replicas, tuple[float, _Replicas] | None]] = field(init=False, repr=False)
    _peaks: dict[tuple[int, int, str], tuple[Replica, float]] = field(init=False, repr=False)
    _parts: dict[tuple[int, str], tuple[tuple[Stage, ...], _Floats]] = field(init=False, repr=False)
    _by_speeds: dict[object, tuple[float, float, float]] = field(init=False, repr=False)
    _borders: dict[int, _Floats] = field(init=False, repr=False)
    _makespans: dict[tuple[int, int, str], tuple[tuple[Stage, ...], float]] = field(init=False, repr=False)
    _prices: dict[int, tuple[Layout, Price]] = field(init=False, repr=False)
    _healthy: dict[str, float] = field(init=False, repr=False)
    _keeps_domains: list[bool] = field(init=False, repr=False)
    _well: list[bool] = field(init=False, repr=False)
    _home_blocks: list[float] = field(init=False, repr=False)
    _home_activations: list[float] = field(init=False, repr=False)
    _wary: list["Situation"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.throughputs and not 0.0 < min(self.throughputs.values()) <= max(self.throughputs.values()) <= 16.0:
            bad = {rank: p for rank, p in self.throughputs.items() if not 0.0 < p <= 16.0}
            raise ValueError(f"throughputs {bad}: each must be above 0 (leave dead ranks out) and at most 16")
        object.__setattr__(self, "dead", tuple([rank for rank in self.layout.ranks if rank not in self.throughputs]))
        for name in (*_SHARED, "_prices"):
            object.__setattr__(self, name, {})
        for name in ("_keeps_domains", "_well", "_home_blocks", "_home_activations", "_wary"):
            object.__setattr__(self, name, [])
        if has_orders(self.home):
            object.__setattr__(self, "with_orders", replace(self.home, routes=()))
        object.__setattr__(self, "home", bare(self.home))
        may = self.home.interleavable or self.with_orders is not None or has_orders(self.layout)
        object.__setattr__(self, "may_have_orders", may)
        if self.device_bytes is not None and not self.device_bytes > 0.0:
            raise ValueError(f"device_bytes is {self.device_bytes}: it must be above 0")

    def without(self, spares: Collection[int]) -> "Situation":
        """The question without some of the ranks that have no place in the layout in force.

        What was looked at is shared: it does not hang on who else is there.
        """
        live = {rank: p for rank, p in self.throughputs.items() if rank not in spares}
        fewer = replace(self, throughputs=live)
        for name in (*_SHARED, "_home_blocks", "_home_activations"):
            object.__setattr__(fewer, name, getattr(self, name))
        return fewer

    def alone(self, stages: tuple[Stage, ...], speeds: Sequence[float], links: tuple[SlowLink, ...]) -> "Situation":
        """The question for a job of one replica of these stages.

        Args:
            stages: Their ranks count from 0.
            speeds: Throughput of each rank.
            links: Slow ones among them.
        """
        layout = Layout(num_blocks=stages[-1].stop_block, replicas=(Replica(stages=stages, num_micro_batches=1),))
        one = replace(self, layout=layout, throughputs=dict(enumerate(speeds)), links=links)
        for name in ("cuts", "_borders", "_by_speeds"):
            object.__setattr__(one, name, getattr(self, name))
        return one

    @property
    def wary(self) -> "Situation":
        """The question as the solver asks it: what stages wider than the full shape's may cost is in the seconds."""
        if self.cost.usual is not None:
            return self
        if not self._wary:
            self._wary.append(replace(self, cost=self.cost.wary(usual_shape(self.home))))
        return self._wary[0]

    def has_wide_stage(self, layout: Layout) -> bool:
        """Whether a stage of a layout is wider than any of the full shape's."""
        full_width = max([len(stage.ranks) for stage in self.home.replicas[0].stages])
        return any(len(stage.ranks) > full_width for replica in layout.replicas for stage in replica.stages)

    @property
    def proportional_bound(self) -> float:
        """Sum of live throughputs, each at most 1, over the number of devices of the full shape."""
        num_devices = len(self.home.ranks) + len(self.home.standbys)
        return sum([min(1.0, p) for p in self.throughputs.values()]) / num_devices

    @property
    def idle_seconds(self) -> float:
        """Seconds per iteration when nothing is done; 0 when nothing cannot be done."""
        return 0.0 if self.dead else self.seconds(self.layout)

    @property
    def all_is_well(self) -> bool:
        """True when every rank of the full shape is healthy, and so are all links."""
        if not self._well:
            self._well.append(not self.links and all(self.throughputs.get(r, 0.0) >= 1.0 for r in self.home.ranks))
        return self._well[0]

    @property
    def healthy_seconds(self) -> float:
        """Seconds per iteration of the full shape with every device healthy, under the best schedule it may have."""
        return min(self._healthy_seconds().values())

    def _healthy_seconds(self) -> dict[str, float]:
        if not self._healthy:
            for name in (self.home.schedule, *self.home.schedules):
                self._healthy[name] = healthy_seconds(self.cost, self.home, name)
        return self._healthy

    def schedules(self, margin: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Schedules that the job may have: (those under which its healthy full shape is near the fastest, the others).

        Args:
            margin: How much slower still is near, relatively; with the margin for structural risks.
        """
        if not self.home.schedules:
            return (), ()
        judged = {
            name: seconds * (1.0 + RISK_MARGIN * self.num_risks(self.home, name))
            for name, seconds in self._healthy_seconds().items()
        }
        most = min(judged.values()) * (1.0 + margin)
        return tuple(n for n in judged if judged[n] <= most), tuple(n for n in judged if judged[n] > most)

    def makespan(self, stages: tuple[Stage, ...], num_micro_batches: int, schedule: str) -> float:
        """:meth:`CostModel.makespan` with the throughputs of this situation; what was asked once is known."""
        found = self._makespans.get((id(stages), num_micro_batches, schedule))
        if found is None:
            # The stages are kept with their answer, so that their id stays their own.
            for quota, seconds in self._some_makespans(stages, num_micro_batches, schedule):
                self._makespans[id(stages), quota, schedule] = stages, seconds
            found = self._makespans[id(stages), num_micro_batches, schedule]
        return found[1]

    def learn_makespan(self, stages: tuple[Stage, ...], num_micro_batches: int, schedule: str, seconds: float) -> None:
        """Take what :meth:`makespan` of such stages is from who has asked it of stages that are alike."""
        self._makespans[id(stages), num_micro_batches, schedule] = stages, seconds

    def _some_makespans(
        self, stages: tuple[Stage, ...], num_micro_batches: int, schedule: str
    ) -> Iterable[tuple[int, float]]:
        """(Quota, seconds) for a quota, and for those that cost next to nothing more."""
        parts, borders = self.parts(stages, schedule), self.border_seconds(stages, schedule)
        quotas = near(num_micro_batches, len(stages))
        if len(quotas) == 1 or schedule not in SHORT_WAY:
            return [(num_micro_batches, replica_makespan(parts, num_micro_batches, borders, schedule))]
        found = pipeline_makespans(parts[None], quotas.start, quotas.stop, borders[None])
        return zip(quotas, found[0].tolist(), strict=True)

    def border_seconds(self, stages: tuple[Stage, ...], schedule: str) -> _Floats:
        """[stages - 1] seconds of transfers; slow links are known only to the plain schedule."""
        if self.links and schedule == "1f1b":
            return np.array(border_factors(self.links, stages)) * self.cost.workload.transfer_seconds
        found = self._borders.get(len(stages))
        if found is None:
            found = self._borders[len(stages)] = self.cost.border_seconds(len(stages))
        return found

    def least_makespan(self, parts: _Floats, num_micro_batches: int, schedule: str, limit: float = math.inf) -> float:
        """Seconds that :meth:`makespan` does not get below, found much sooner; 0 where nothing is known.

        Args:
            parts: Seconds of one micro-batch in each stage, forward and backward together.
            num_micro_batches: The replica's quota.
            schedule: Name of the schedule.
            limit: Once it takes longer than that, by how much does not matter.
        """
        if schedule != "1f1b" or not num_micro_batches:
            return 0.0
        least, most = self.cost.forward_parts
        transfer = self.cost.workload.transfer_seconds
        return pipeline_bound(parts, num_micro_batches, most, 1.0 - least, transfer, limit)[0] * _ROUNDED

    def seconds_to_blocks(self, stages: Sequence[Stage]) -> _Floats:
        """[stages, blocks + 1]: :meth:`CostModel.seconds_to_block` of the devices of each stage."""
        throughputs, seconds_to_block = self.throughputs, self.cost.seconds_to_block
        return np.array(
            [seconds_to_block(stage.shares, tuple([throughputs[r] for r in stage.ranks])) for stage in stages]
        )

    def parts(self, stages: tuple[Stage, ...], schedule: str) -> _Floats:
        """[stages, 3]: :meth:`CostModel.parts` of each stage; the same array for the same question."""
        found = self._parts.get((id(stages), schedule))
        if found is None:
            # The stages are kept with their answer, so that their id stays their own.
            found = stages, np.array([self._parts_by_speeds(stage, schedule) for stage in stages])
            self._parts[id(stages), schedule] = found
        return found[1]

    def _parts_by_speeds(self, stage: Stage, schedule: str) -> tuple[float, float, float]:
        speeds = tuple([self.throughputs.get(rank, 0.0) for rank in stage.ranks])
        key = stage.first_block, stage.stop_block, stage.shares, speeds, schedule
        found = self._by_speeds.get(key)
        if found is None:
            found = self._by_speeds[key] = self.cost.parts(stage, self.throughputs, schedule)
        return found

    def seconds(self, layout: Layout, schedule: str | None = None) -> float:
        """Predicted seconds per iteration of a layout of live ranks, under another schedule if one is given."""
        name = schedule or layout.schedule
        if layout.routes:
            return self.cost.total(self._routed_seconds(layout if schedule is None else replace(layout, schedule=name)))
        seconds = [
            self.ordered_seconds(r) if r.orders else self.makespan(r.stages, r.num_micro_batches, name)
            for r in layout.replicas
        ]
        return self.cost.total(slowest_seconds(layout, seconds))

    def ordered_seconds(self, replica: Replica) -> float:
        """Seconds of the pipeline of a replica with orders, whatever the schedule; links as they are."""
        stages, cells = replica.stages, replica.cells
        programs = programs_of(replica.orders, cells, replica.num_micro_batches)
        factors = border_factors(self.links, stages) if self.links else ()
        transfer = self.cost.workload.transfer_seconds
        parts = self.parts(stages, _BY_ORDERS).tolist()
        return ordered_makespan(programs, cells, parts, transfer, factors)

    def _routed_seconds(self, layout: Layout) -> float:
        replicas, name = layout.replicas, layout.schedule
        return slowest_routed(
            layout,
            lambda d: self.parts(replicas[d].stages, name).tolist(),
            lambda d: self.makespan(replicas[d].stages, replicas[d].num_micro_batches, name),
            self.cost.workload.transfer_seconds,
        )

    def replay(self) -> Replay | None:
        """The job's recent iterations; None where they are not known, or where slow links make them others."""
        recent = self.cost.workload.recent
        if self.links or not recent or len(recent[0].tokens) != self.layout.num_micro_batches:
            return None
        return Replay(self.cost, self.layout.mix)

    def judged_seconds(self, layout: Layout, schedule: str | None = None) -> float:
        """Wary seconds per iteration, plus a margin for each structural risk that the cost model does not see.

        A replica less costs redundancy, a merged stage and a split backward memory where its limit is not known, a
        stage wider than the full shape's collectives: such a layout must be faster by the margin to be preferred, and
        the wider stage also by what :class:`UsualShape` takes it to be slower. When everybody is healthy, so must be
        anything but the full shape, which was chosen with reasons that the model does not know.
        """
        is_wary = self.cost.usual is not None or not self.has_wide_stage(layout)
        seconds = (self if is_wary else self.wary).seconds(layout, schedule)
        return seconds * (1.0 + RISK_MARGIN * self.num_risks(layout, schedule))

    def num_risks(self, layout: Layout, schedule: str | None = None) -> int:
        """How many structural risks a layout takes, under another schedule if one is given."""
        full_width = max([len(stage.ranks) for stage in self.home.replicas[0].stages])
        num_stages = len(self.home.replicas[0].stages)
        risks = max(0, len(self.home.replicas) - len(layout.replicas))
        if self.device_bytes is None:
            split = (schedule or layout.schedule) in SPLIT_BACKWARD
            risks += split and self.home.schedule not in SPLIT_BACKWARD
            risks += bool(layout.routes) and most_held(layout) > num_stages
            risks += self.may_have_orders and self.with_orders is None and any(map(self.holds_more, layout.replicas))
        shape = self.with_orders or self.home
        risks += self.all_is_well and (layout.replicas != shape.replicas or bool(layout.routes))
        for replica in layout.replicas:
            if self.device_bytes is None:
                risks += max(0, num_stages - len(replica.stages))
            risks += sum([len(stage.ranks) > full_width for stage in replica.stages])
        return risks

    def holds_more(self, replica: Replica) -> bool:
        """Whether ranks of a replica with orders hold more activations at a time than any of the full shape's."""
        if not replica.orders:
            return False
        return activation_peak(self.cost.model, replica) > self.home_activations * (1.0 + 1e-9)

    @property
    def home_activations(self) -> float:
        """Most activations that a stage of the full shape holds at a time, as :func:`activation_peak` counts them."""
        if not self._home_activations:
            kinds = {(r.num_micro_batches, *[s.stop_block for s in r.stages]): r for r in self.home.replicas}
            model, name = self.cost.model, self.home.schedule
            self._home_activations.append(max([activation_peak(model, kind, name) for kind in kinds.values()]))
        return self._home_activations[0]

    def excess_bytes(self, layout: Layout) -> float:
        """Bytes that the fullest device of a layout has too little memory for; 0 = it fits, or no limit is known."""
        if self.device_bytes is None:
            return 0.0
        return max(0.0, layout_peak(self.cost.model, layout, self._peaks) - self.device_bytes)

    def crowding(self, stages: tuple[Stage, ...]) -> float:
        """How far stages fill some device beyond what a plan may do of its own accord, in blocks; at most 0 = not.

        Where memory is not known that is a little more than the full shape does. Devices that fill because others died
        are another matter.
        """
        return max(map(_blocks_on_fullest, stages)) - self.most_blocks

    @property
    def most_blocks(self) -> float:
        """Blocks that a plan may give a device of its own accord where memory is not known."""
        if not self._home_blocks:
            self._home_blocks.append(_MOST_FILLED * max(map(_blocks_on_fullest, self.home.replicas[0].stages)))
        return self._home_blocks[0]

    @property
    def keeps_domains(self) -> bool:
        """Whether stages that a plan forms anew must lie in one domain each: most of the full shape's do.

        Tensor groups exchange data in every block, which the cost model takes to be as fast as within a domain.
        """
        if not self._keeps_domains:
            groups = [{self.domains.get(rank) for rank in s.ranks} for r in self.home.replicas for s in r.stages]
            known = [group - {None} for group in groups] if self.domains else []
            self._keeps_domains.append(2 * sum([len(group) > 1 for group in known]) < len(known))
        return self._keeps_domains[0]

    def domain(self, rank: int) -> int | str:
        """Only ranks for which this is the same may be put into one stage; the same for all where that is free."""
        return self.domains.get(rank, "") if self.keeps_domains else ""

    @property
    def largest_scale(self) -> float:
        """Size of the largest micro-batches that a plan may make, 1 = as registered."""
        return 1.0 if self.home.mix is None else self.home.mix.max_scale

    def replica_excess_bytes(self, replica: Replica, schedule: str = "1f1b") -> float:
        """Bytes that the fullest device of a replica has too little memory for, with the largest micro-batches."""
        if self.device_bytes is None:
            return 0.0
        peaks = replica_peaks(self.cost.model, replica, self.largest_scale, schedule)
        return max(0.0, max(peaks) - self.device_bytes)

    def price(self, layout: Layout) -> Price:
        """What going to ``layout`` costs."""
        found = self._prices.get(id(layout))
        if found is None:
            price = price_of(self.cost.model, self.layout, layout, self.holders, self.transition)
            found = self._prices[id(layout)] = layout, price
        return found[1]


def _blocks_on_fullest(stage: Stage) -> float:
    return stage.num_blocks * max(stage.shares) / sum(stage.shares)
