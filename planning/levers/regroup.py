"""Lever: regroup. Replicas that do not fit their devices' memory are given up, or what is left of them put together.

A replica that loses device after device must hold the whole model on what is left, until that does not fit. Its ranks
then go on as standbys of the others, or the ranks of all such replicas form as many whole replicas as fit. Replicas
that fit only with another split get that split. Proposes nothing where no memory limit is known or everything fits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.levers.rebalance.grid import even_stages
from evenkeel.planning.repair import repaired, spread_quotas, with_replicas
from evenkeel.planning.situation import Situation

_Ranks = tuple[int, ...]


class Regroup(Lever):
    """Whole replicas from the ranks of those that do not fit."""

    name = "regroup"
    asked = Asked.SHAPE, 0

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` and the full shape without their dead, with replicas that do not fit put together or given up."""
        if situation.device_bytes is None:
            return
        for origin in dict.fromkeys((base, situation.home)):
            shape = repaired(origin, situation.throughputs.keys())
            if shape is not None and situation.excess_bytes(shape):
                yield from _regrouped(situation, shape)

    def describe(self, before: Layout, after: Layout) -> str:
        """How many replicas are left."""
        return f"{len(after.replicas)} replicas that fit memory (were {len(before.replicas)})"


def _regrouped(situation: Situation, shape: Layout) -> Iterator[Layout]:
    kept: list[Replica] = []
    pool = list(shape.standbys)
    for replica in shape.replicas:
        if not situation.replica_excess_bytes(replica, shape.schedule):
            kept.append(replica)
            continue
        stages = _fitting(situation, replica.stages)
        if stages is None:
            pool.extend(replica.ranks)
        else:
            kept.append(replace(replica, stages=stages))
    formed = _formed(situation, pool)
    for replicas in ([*kept, *formed], kept) if formed else (kept,):
        if replicas:
            total = shape.num_micro_batches
            even = max(1, total // len(shape.replicas))
            quotas = spread_quotas([replica.num_micro_batches or even for replica in replicas], total)
            dealt = [replace(r, num_micro_batches=q) for r, q in zip(replicas, quotas, strict=True)]
            yield with_replicas(shape, dealt, situation.throughputs.keys())


def _fitting(situation: Situation, stages: tuple[Stage, ...]) -> tuple[Stage, ...] | None:
    """The stages with the fastest split that fits, however many micro-batches they get; None where none does."""
    home = situation.home
    return fastest_stages(situation, stages, home.num_micro_batches, home.schedule, widths=False, splits=True)


def _formed(situation: Situation, pool: Sequence[int]) -> list[Replica]:
    """As many replicas of these ranks as can be; of those, the ones that leave the fewest ranks over."""
    ranks = sorted(pool, key=lambda rank: (str(situation.domain(rank)), -situation.throughputs[rank], rank))
    places = [list(group) for _, group in groupby(ranks, key=situation.domain)]
    most = min(len(ranks), situation.cost.main_width)
    powers = {1 << power for power in range(most.bit_length())}
    widths = sorted(powers | {min(situation.full_width, most)} - {0}, reverse=True)
    options: list[tuple[int, int, int, list[Replica]]] = []
    for width in widths:
        cells = [tuple(some[i : i + width]) for some in places for i in range(0, len(some) - width + 1, width)]
        depths = range(1, min(len(cells), situation.home.num_blocks) + 1)
        depth = next((depth for depth in depths if _dealt(situation, cells[:depth]) is not None), None)
        if depth is not None:
            formed = _replicas(situation, cells, depth)
            used = sum(len(replica.ranks) for replica in formed)
            options.append((len(formed), used, width <= situation.full_width, formed))
    return max(options, key=lambda option: option[:3])[3] if options else []


def _dealt(situation: Situation, cells: Sequence[_Ranks]) -> Replica | None:
    """These ranks as a replica that fits, if there is one; it has no micro-batches yet."""
    num_blocks = situation.home.num_blocks
    stages = _fitting(situation, even_stages(cells, num_blocks)) if len(cells) <= num_blocks else None
    return None if stages is None else Replica(stages=stages, num_micro_batches=0)


def _replicas(situation: Situation, cells: Sequence[_Ranks], depth: int) -> list[Replica]:
    """Replicas of at least ``depth`` stages; stages that are left over deepen the first ones while that fits."""
    count = len(cells) // depth
    found, start = [], 0
    for d in range(count):
        number = len(cells) // count + (d < len(cells) % count)
        replicas = (_dealt(situation, cells[start : start + stages]) for stages in (number, depth))
        found += list(islice(filter(None, replicas), 1))
        start += number
    return found
