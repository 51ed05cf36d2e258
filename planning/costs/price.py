"""What going from one layout to another costs: bytes that travel, groups that are built, seconds of pause."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Layout, Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.planning.costs.looks import Looks


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionCosts:
    """Constants of a machine park; defaults were measured with eight gloo ranks on two cores.

    Attributes:
        group_seconds: Building the process groups of an epoch.
        bytes_per_second: Into one rank.
    """

    group_seconds: float = 0.1
    bytes_per_second: float = 2e8


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Cost of one transition.

    Attributes:
        moved_bytes: Parameters and optimizer state that travel, all ranks together.
        pause_seconds: Training time it costs: groups, and the rank that receives most.
    """

    moved_bytes: int
    pause_seconds: float


Holding = tuple[tuple[tuple[int, int, tuple[int, ...]], ...], int]
"""(First block, one past the last, shares) of the stages of which a rank holds a shard, and which one."""


def _held(layout: Layout, without: Collection[int]) -> dict[tuple[Stage, ...], None]:
    """What ranks hold together in replicas but some: stages of a cell."""
    replicas = [replica for replica in layout.replicas if id(replica.stages) not in without]
    return {tuple([replica.stages[s] for s in cell]): None for replica in replicas for cell in replica.cells}


def holdings_of(together: Iterable[tuple[Stage, ...]]) -> dict[int, Holding]:
    """What each rank holds of stages of which those of a tuple are held by the same ranks."""
    holdings = {}
    for held in together:
        shape = tuple([(stage.first_block, stage.stop_block, stage.shares) for stage in held])
        for t, rank in enumerate(held[0].ranks):
            holdings[rank] = shape, t
    return holdings


@lru_cache(maxsize=16384)
def _interval(max_width: int, shares: tuple[int, ...], t: int) -> tuple[float, float]:
    if max_width <= 1:
        return 0.0, 1.0
    borders = cut(max_width, 1, shares)
    return borders[t] / max_width, borders[t + 1] / max_width


class Sizes:
    """Bytes of any range of blocks, by the width in which they are cut; what was asked once is known."""

    def __init__(self, model: ModelSpec) -> None:
        self._known: dict[tuple[Holding, Holding | None], int] = {}
        self._running = {
            width: list(
                accumulate(
                    [(b.parameter_bytes + b.optimizer_bytes) * (b.max_width == width) for b in model.blocks], initial=0
                )
            )
            for width in {block.max_width for block in model.blocks}
        }

    def missing_bytes(self, new: Holding, old: Holding | None) -> int:
        """Bytes that a rank needs under ``new`` and does not hold under ``old``."""
        found = self._known.get((new, old))
        if found is None:
            found = self._known[new, old] = round(self._missing(new, old))
        return found

    def _missing(self, new: Holding, old: Holding | None) -> float:
        missing = 0.0
        old_stages, old_shard = old or ((), 0)
        for first, stop, shares in new[0]:
            for width, running in self._running.items():
                left, right = _interval(width, shares, new[1])
                missing += (right - left) * (running[stop] - running[first])
                for old_first, old_stop, old_shares in old_stages:
                    if max(first, old_first) < min(stop, old_stop):
                        held = running[min(stop, old_stop)] - running[max(first, old_first)]
                        old_left, old_right = _interval(width, old_shares, old_shard)
                        missing -= max(0.0, min(right, old_right) - max(left, old_left)) * held
        return missing


class Prices:
    """What going from one layout to others costs; what was asked once is known.

    Args:
        model: Sizes of the blocks.
        old: Layout in force.
        live: Ranks that still hold their slices of it.
        costs: Constants; defaults when None.
    """

    def __init__(
        self, model: ModelSpec, old: Layout, live: Collection[int], costs: TransitionCosts | None = None
    ) -> None:
        self._old, self._costs, self._sizes = old, costs or TransitionCosts(), Sizes(model)
        self._lost = set(old.ranks).difference(live)
        self._looks = Looks()

    def of(self, new: Layout) -> Price:
        """Price of going to a layout."""
        return self._looks.once("price", of=(new,), find=lambda: self._price(new))

    def _price(self, new: Layout) -> Price:
        old, lost = self._old, self._lost
        # Replicas that both layouts share cost nothing, unless somebody in them has lost its slices.
        kept = {id(r.stages) for r in old.replicas} & {id(r.stages) for r in new.replicas}
        sound = {id(r.stages) for r in old.replicas if id(r.stages) in kept and lost.isdisjoint(r.ranks)}
        held, holds = _held(old, sound), _held(new, sound)
        same = {each for each in holds if each in held and lost.isdisjoint(each[0].ranks)}
        before, after = (holdings_of([each for each in some if each not in same]) for some in (held, holds))
        missing = [
            self._sizes.missing_bytes(holding, before.get(rank) if rank not in lost else None)
            for rank, holding in after.items()
        ]
        pause = self._costs.group_seconds + max(missing, default=0) / self._costs.bytes_per_second
        return Price(moved_bytes=sum(missing), pause_seconds=pause if old != new else 0.0)
