"""What going from one layout to another costs: bytes that travel, groups that are built, seconds of pause."""

from collections.abc import Collection
from dataclasses import dataclass

from layouts.cut import cut
from layouts.layout import Layout, Stage
from layouts.model import ModelSpec


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
        num_changed: Ranks whose position or slice changes.
    """

    moved_bytes: int
    pause_seconds: float
    num_changed: int


_Holding = tuple[Stage, int]


def _holdings(layout: Layout) -> dict[int, _Holding]:
    return {
        rank: (stage, t)
        for replica in layout.replicas
        for stage in replica.stages
        for t, rank in enumerate(stage.ranks)
    }


def _interval(max_width: int, holding: _Holding) -> tuple[float, float]:
    if max_width <= 1:
        return 0.0, 1.0
    stage, t = holding
    borders = cut(max_width, 1, stage.shares)
    return borders[t] / max_width, borders[t + 1] / max_width


def _missing_bytes(model: ModelSpec, new: _Holding, old: _Holding | None) -> int:
    """Bytes that a rank needs under ``new`` and does not hold under ``old``."""
    missing = 0.0
    for block in range(new[0].first_block, new[0].stop_block):
        cost = model.blocks[block]
        start, stop = _interval(cost.max_width, new)
        fraction = stop - start
        if old is not None and old[0].first_block <= block < old[0].stop_block:
            old_start, old_stop = _interval(cost.max_width, old)
            fraction -= max(0.0, min(stop, old_stop) - max(start, old_start))
        missing += fraction * (cost.parameter_bytes + cost.optimizer_bytes)
    return round(missing)


def price_of(
    model: ModelSpec, old: Layout, new: Layout, live: Collection[int], costs: TransitionCosts | None = None
) -> Price:
    """Price of going from ``old`` to ``new``.

    Args:
        model: Sizes of the blocks.
        old: Layout in force.
        new: Layout to go to.
        live: Ranks that still hold their slices of ``old``.
        costs: Constants; defaults when None.
    """
    costs = costs or TransitionCosts()
    before, after = _holdings(old), _holdings(new)
    moved = largest = changed = 0
    for rank, holding in after.items():
        old_holding = before.get(rank) if rank in live else None
        if old_holding is not None and old_holding[1] == holding[1]:
            was, becomes = old_holding[0], holding[0]
            same = (was.first_block, was.stop_block, was.shares) == (
                becomes.first_block,
                becomes.stop_block,
                becomes.shares,
            )
            if same:
                continue
        missing = _missing_bytes(model, holding, old_holding)
        moved += missing
        largest = max(largest, missing)
        changed += 1
    changed += sum(1 for rank in before if rank in live and rank not in after)
    changed += sum(
        len(replica.ranks)
        for was, replica in zip(old.replicas, new.replicas, strict=False)
        if was.stages == replica.stages and was.num_micro_batches != replica.num_micro_batches
    )
    pause = costs.group_seconds + largest / costs.bytes_per_second
    return Price(moved_bytes=moved, pause_seconds=pause if old != new else 0.0, num_changed=changed)
