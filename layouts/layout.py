"""Which rank holds which position of a job: replicas, their stages, their shards.

Replicas may differ from one another in layer split, tensor width and micro-batch quota. A layout is immutable; a plan
leads from one layout to another, and everything else (ownership, groups, instructions) follows from the layout alone.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.programs.orders import Order, cells_of, flaw_in
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.sizes.mix import Mix


class LayoutError(ValueError):
    """The layout contradicts itself; the message says where and shows the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage of one replica: blocks ``[first_block, stop_block)`` cut over ``ranks``.

    Attributes:
        first_block: First model block of the stage.
        stop_block: One past its last block.
        ranks: Rank at each shard position t.
        shares: Relative tensor width of each shard; same length as ``ranks``, each at least 1.
    """

    first_block: int
    stop_block: int
    ranks: tuple[int, ...]
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.first_block < self.stop_block:
            raise LayoutError(f"stage has blocks [{self.first_block}, {self.stop_block}): it needs at least one")
        if not self.ranks:
            raise LayoutError(f"stage of blocks [{self.first_block}, {self.stop_block}) has no rank")
        if len(self.ranks) != len(self.shares):
            raise LayoutError(f"{len(self.ranks)} ranks {self.ranks} but {len(self.shares)} shares {self.shares}")
        if min(self.shares) < 1:
            raise LayoutError(f"shares {self.shares}: each must be at least 1; leave the rank out instead")

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the stage."""
        return self.stop_block - self.first_block

    def fraction(self, shard: int) -> float:
        """The part of the stage's sharded width that shard ``shard`` was meant to hold, before rounding."""
        return self.shares[shard] / sum(self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of the model.

    Attributes:
        stages: In pipeline order.
        num_micro_batches: Per iteration; may be 0.
        orders: What each cell computes, in order, where the same ranks hold several stages; none = the layout's
            schedule, and a rank has one stage.
        ranks: All ranks of the replica, stage by stage, shard by shard; each once.
        stop_block: One past the last block when the stages follow one another from block 0, else -1.

    Raises:
        LayoutError: Orders that are not complete or wait for ever; ranks that hold several stages in different shares.
    """

    stages: tuple[Stage, ...]
    num_micro_batches: int
    orders: tuple[Order, ...] = ()
    ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    stop_block: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Kept: layouts of many replicas share most of them, and each is asked for these many times.
        groups = [stage.ranks for stage in self.stages]
        if self.orders:
            self._check_orders()
            groups = list(dict.fromkeys(groups))
        object.__setattr__(self, "ranks", tuple(chain.from_iterable(groups)))
        expected = 0
        for stage in self.stages:
            expected = stage.stop_block if stage.first_block == expected else -1
        object.__setattr__(self, "stop_block", expected)

    @property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """Stages that the same ranks hold, cell by cell; without orders one each."""
        if not self.orders:
            return tuple([(s,) for s in range(len(self.stages))])
        return cells_of([stage.ranks for stage in self.stages])

    def _check_orders(self) -> None:
        for cell in self.cells:
            shares = {self.stages[s].shares for s in cell}
            if len(shares) > 1:
                raise LayoutError(f"stages {cell} of one cell are cut in shares {sorted(shares)}: they need the same")
        flaw = flaw_in(self.orders, self.cells, self.num_micro_batches)
        if flaw:
            raise LayoutError(flaw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a rank stands: replica d, stage s, shard t. Of several stages that it holds, s is the first."""

    replica: int
    stage: int
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which rank holds which position.

    Attributes:
        num_blocks: Model blocks in total (embedding, layers and head are blocks).
        replicas: Replicas in order; at least one.
        standbys: Ranks that are alive and hold no position.
        schedule: Name of the pipeline schedule in :mod:`evenkeel.layouts.programs.schedules`.
        mix: Which documents go to which micro-batch; None = as they were drawn.
        schedules: Schedules that a plan may choose for the job, because its engine runs them; none = only ``schedule``.
        routes: Stages of micro-batches that another replica runs; by micro-batch and stage, whatever order is given.
        routable: True when a plan may route micro-batches, because the job's engine runs such layouts.
        interleavable: True when a plan may give ranks several stages, because the job's engine runs such layouts.
        whole: True where replicas go on without one that is gone, and take one in, without being told: a plan then only
            says who runs how many micro-batches.
        ranks: Ranks that hold a position, ascending; standbys excluded.
        num_micro_batches: Of the whole iteration: the same under every layout of a job.

    Raises:
        LayoutError: A stage's blocks do not follow the previous one's, a rank appears twice, quotas are negative or
            all zero, a route leads to a replica that does not have the same blocks at that stage or to ranks that hold
            several.
    """

    num_blocks: int
    replicas: tuple[Replica, ...]
    standbys: tuple[int, ...] = ()
    schedule: str = "1f1b"
    mix: Mix | None = None
    schedules: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    routable: bool = False
    interleavable: bool = False
    whole: bool = False
    ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    num_micro_batches: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.replicas:
            raise LayoutError("a layout needs at least one replica")
        for index, replica in enumerate(self.replicas):
            if replica.stop_block != self.num_blocks:
                raise self._gap(index, replica)
            if replica.num_micro_batches < 0:
                raise LayoutError(f"replica {index} has a quota of {replica.num_micro_batches} micro-batches")
        object.__setattr__(self, "num_micro_batches", sum([replica.num_micro_batches for replica in self.replicas]))
        if self.num_micro_batches < 1:
            raise LayoutError("no replica has any micro-batch")
        if self.mix is not None and self.mix.num_micro_batches != self.num_micro_batches:
            raise LayoutError(
                f"the mix is for {self.mix.num_micro_batches} micro-batches, the replicas run {self.num_micro_batches}"
            )
        ranks = sorted(chain.from_iterable([replica.ranks for replica in self.replicas]))
        object.__setattr__(self, "ranks", tuple(ranks))
        everyone = {*ranks, *self.standbys}
        if len(everyone) != len(ranks) + len(self.standbys):
            repeated = sorted(rank for rank, count in Counter((*ranks, *self.standbys)).items() if count > 1)
            raise LayoutError(f"ranks {repeated} hold more than one position")
        if (least := min([*ranks[:1], *self.standbys], default=0)) < 0:
            raise LayoutError(f"negative rank {least}")
        if self.routes:
            object.__setattr__(self, "routes", tuple(sorted(self.routes)))
            self._check_routes()

    def _check_routes(self) -> None:
        if any(replica.orders for replica in self.replicas):
            raise LayoutError("routes and replicas with orders of their own do not go together")
        homes = [d for d, replica in enumerate(self.replicas) for _ in range(replica.num_micro_batches)]
        seen = set()
        for route in self.routes:
            micro_batch, s, host = route.micro_batch, route.stage, route.replica
            if not (0 <= micro_batch < len(homes) and 0 <= host < len(self.replicas)):
                raise LayoutError(f"{route}: there are {len(homes)} micro-batches and {len(self.replicas)} replicas")
            home = homes[micro_batch]
            if home == host:
                raise LayoutError(f"{route}: the micro-batch is of that replica anyway; leave the route out")
            ends = [
                (each[s].first_block, each[s].stop_block) if 0 <= s < len(each) else None
                for each in (self.replicas[home].stages, self.replicas[host].stages)
            ]
            if ends[0] is None or ends[0] != ends[1]:
                raise LayoutError(
                    f"{route}: stage {s} has blocks {ends[0]} in replica {home} and {ends[1]} in replica {host}; "
                    "both need the same"
                )
            if (micro_batch, s) in seen:
                raise LayoutError(f"stage {s} of micro-batch {micro_batch} is routed twice")
            seen.add((micro_batch, s))

    def _gap(self, index: int, replica: Replica) -> LayoutError:
        """What is wrong with the blocks of a replica."""
        expected = 0
        for number, stage in enumerate(replica.stages):
            if stage.first_block != expected:
                return LayoutError(
                    f"replica {index}, stage {number} starts at block {stage.first_block}, expected {expected}"
                )
            expected = stage.stop_block
        return LayoutError(f"replica {index} ends at block {expected} of {self.num_blocks}")

    def positions(self) -> Iterator[tuple[int, Position]]:
        """Every (rank, position), replica by replica, stage by stage, shard by shard."""
        for d, replica in enumerate(self.replicas):
            for s, *_ in replica.cells:
                for t, rank in enumerate(replica.stages[s].ranks):
                    yield rank, Position(replica=d, stage=s, shard=t)

    def position_of(self, rank: int) -> Position | None:
        """Where ``rank`` stands, or None for a standby or a stranger."""
        return next((position for other, position in self.positions() if other == rank), None)

    def stage_at(self, position: Position) -> Stage:
        """The stage at a position."""
        return self.replicas[position.replica].stages[position.stage]

    def cell_at(self, position: Position) -> tuple[int, ...]:
        """All stages that the ranks at a position hold, ascending."""
        return next(cell for cell in self.replicas[position.replica].cells if position.stage in cell)

    def micro_batches_of(self, replica: int) -> range:
        """Indices of the global micro-batches that a replica runs: consecutive, replica by replica."""
        start = sum(other.num_micro_batches for other in self.replicas[:replica])
        return range(start, start + self.replicas[replica].num_micro_batches)


def uniform_layout(
    *, num_blocks: int, tensor: int, pipeline: int, data: int, num_micro_batches: int, schedule: str = "1f1b"
) -> Layout:
    """The layout of a healthy job: equal widths, even splits, even quotas; ranks t fastest, then s, then d.

    Blocks and micro-batches that do not divide evenly go to the first stages and replicas.

    Raises:
        LayoutError: A degree is below 1 or there are fewer blocks than stages.
    """
    if min(tensor, pipeline, data) < 1:
        raise LayoutError(f"degrees TP {tensor} x PP {pipeline} x DP {data}: each must be at least 1")
    if num_blocks < pipeline:
        raise LayoutError(f"{num_blocks} blocks cannot fill {pipeline} stages")
    borders = list(accumulate(even_parts(num_blocks, pipeline), initial=0))
    replicas = []
    for d, quota in enumerate(even_parts(num_micro_batches, data)):
        stages = []
        for s in range(pipeline):
            first_rank = (d * pipeline + s) * tensor
            stages.append(
                Stage(
                    first_block=borders[s],
                    stop_block=borders[s + 1],
                    ranks=tuple(range(first_rank, first_rank + tensor)),
                    shares=(1,) * tensor,
                )
            )
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    return Layout(num_blocks=num_blocks, replicas=tuple(replicas), schedule=schedule)
