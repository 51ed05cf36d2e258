"""One structure, several levers: the best widths, splits and quotas that a set of tuning levers can reach together.

Replicas of equal shape and equal speeds are alike and solved once, so that the work follows the number of different
replicas and not of devices. What does not change stays the same object, which later steps see at a glance.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import chain, product

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.planning.levers.balance.layer_split import fastest_stages
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.planning.levers.sequence_mix import best_mix
from evenkeel.planning.repair import spread_quotas
from evenkeel.planning.situation import Situation

TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA = "tensor_width", "layer_split", "micro_batch_quota"
SEQUENCE_MIX = "sequence_mix"
_SAME = 1.0 + 1e-6
_OTHER = 0.25
_Stages = tuple[Stage, ...]
_Shapes = tuple[_Stages, ...]
_Replicas = tuple[Replica, ...]
_Levers = frozenset[str]


class Tuner:
    """Tunes structures for one situation; what was asked once is known, also with more or fewer spare ranks.

    Args:
        situation: The situation.
    """

    def __init__(self, situation: Situation) -> None:
        self._situation, self._once = situation, situation.looks.once

    def tuned(self, base: Layout, levers: Collection[str]) -> Layout:
        """The best layout that a set of levers reaches from ``base``, changed no more than that needs.

        With quotas and splits both free, the splits are solved for the quotas that they led to once more.
        """
        chosen = frozenset(levers)
        return self._once("tuned", chosen, of=(base,), find=lambda: self._tuned(base, chosen))

    def mixed(self, base: Layout) -> Layout:
        """The same with the best sizes of micro-batches, and nothing else changed."""
        return self.tuned(base, (SEQUENCE_MIX,))

    def _tuned(self, base: Layout, levers: _Levers) -> Layout:
        replicas, mix = self._once(
            "solved", base.schedule, base.mix, levers, of=(base.replicas,), find=lambda: self._solved(base, levers)
        )
        if mix == base.mix and all(new is old for new, old in zip(replicas, base.replicas, strict=True)):
            return base
        changed = [(o, n) for o, n in zip(base.replicas, replicas, strict=True) if o.stages is not n.stages]
        free = set(base.standbys).union(*[o.ranks for o, _ in changed]).difference(*[n.ranks for _, n in changed])
        return replace(base, replicas=replicas, mix=mix, standbys=tuple(sorted(free)))

    def _solved(self, base: Layout, levers: _Levers) -> tuple[_Replicas, Mix | None]:
        """The best replicas, and the best mix; neither hangs on who is spare."""
        schedule = base.schedule
        quotas = asked = tuple([replica.num_micro_batches for replica in base.replicas])
        alike = [self._situation.alike(replica.stages) for replica in base.replicas]
        shapes = [self._shapes(each, (quota,), schedule, levers) for each, quota in zip(alike, asked, strict=True)]

        def seconds_of(d: int, quota: int) -> float:
            return self._least_seconds(shapes[d], quota, schedule)

        if MICRO_BATCH_QUOTA in levers:
            quotas = best_quotas(seconds_of, quotas)
            if LAYER_SPLIT in levers:
                for d in range(len(quotas)):
                    # The best split hangs little on the quota: it is looked for again when that is quite another one.
                    if quotas[d] and abs(quotas[d] - asked[d]) > _OTHER * quotas[d]:
                        shapes[d] = self._shapes(alike[d], (asked[d], quotas[d]), schedule, levers)
                quotas = best_quotas(seconds_of, quotas)
        mix = base.mix
        if SEQUENCE_MIX in levers and self._situation.home.mix is not None:
            quotas, mix = _mixed(seconds_of, quotas, self._situation.home.mix) or (quotas, mix)
        scales = [1.0] * len(quotas) if mix is None else mix.scales(quotas)
        slowest = max([seconds_of(d, quota) * scales[d] for d, quota in enumerate(quotas)]) * _SAME
        replicas = tuple(
            [
                self._replica(replica, alike[d], shapes[d], quotas[d], slowest / scales[d], schedule)
                for d, replica in enumerate(base.replicas)
            ]
        )
        return replicas, mix

    def _shapes(self, stages: _Stages, quotas: tuple[int, ...], schedule: str, levers: _Levers) -> _Shapes:
        """Shapes that the levers lead to for any of some quotas, least changed first; the given one where none fits."""
        asked = quotas, schedule, TENSOR_WIDTH in levers, LAYER_SPLIT in levers
        return self._once("shapes", *asked, of=(stages,), find=lambda: self._found(stages, *asked))

    def _found(self, stages: _Stages, quotas: tuple[int, ...], schedule: str, widths: bool, splits: bool) -> _Shapes:
        found: list[_Stages] = []  # few, and their hashes are long
        for quota, (wide, split) in product(quotas, ((False, False), (widths, False), (widths, splits))):
            ask = partial(fastest_stages, self._situation, stages, quota, schedule, widths=wide, splits=split)
            shape = self._once("fastest", quota, schedule, wide, split, of=(stages,), find=ask)
            if shape is not None and shape not in found:
                found.append(shape)
        return tuple(found) or (stages,)

    def _least_seconds(self, shapes: _Shapes, quota: int, schedule: str) -> float:
        """Pipeline seconds of the fastest of some shapes."""
        makespan = self._situation.makespan
        return self._once(
            "least",
            quota,
            schedule,
            of=(shapes,),
            find=lambda: min([makespan(shape, quota, schedule) for shape in shapes]),
        )

    def _replica(
        self, replica: Replica, alike: _Stages, shapes: _Shapes, quota: int, slowest: float, schedule: str
    ) -> Replica:
        """The replica in the first shape that is fast enough; the same object for the same shape and quota."""
        makespan = self._situation.makespan
        shape = next((s for s in shapes[:-1] if makespan(s, quota, schedule) <= slowest), shapes[-1])
        stages = replica.stages
        if shape is not alike:
            stages = self._once("named", of=(shape, stages), find=lambda: _with_ranks_of(shape, alike, replica.stages))
        if stages is replica.stages and quota == replica.num_micro_batches:
            return replica
        return self._once("replica", quota, of=(stages,), find=lambda: Replica(stages=stages, num_micro_batches=quota))


def _mixed(
    seconds_of: Callable[[int, int], float], quotas: tuple[int, ...], rule: Mix
) -> tuple[tuple[int, ...], Mix] | None:
    """Quotas and the mix for them, the fastest of some; equal quotas keep the pipelines equally full."""
    even = tuple(spread_quotas([0] * len(quotas), sum(quotas)))
    found = [(*each, some) for some in (quotas, even) if (each := best_mix(seconds_of, some, rule)) is not None]
    if not found:
        return None
    _, mix, quotas = min(found, key=lambda each: each[0] * (1.0 if each[2] is quotas else _SAME))
    return quotas, mix


def _with_ranks_of(stages: _Stages, one: _Stages, other: _Stages) -> _Stages:
    """What became of one replica's stages with the ranks of another one that is alike."""
    if one is other:
        return stages
    now, then = (chain.from_iterable([stage.ranks for stage in shape]) for shape in (one, other))
    name_of = dict(zip(now, then, strict=True)).__getitem__
    return tuple(
        [
            Stage(
                first_block=stage.first_block,
                stop_block=stage.stop_block,
                ranks=tuple(map(name_of, stage.ranks)),
                shares=stage.shares,
            )
            for stage in stages
        ]
    )
