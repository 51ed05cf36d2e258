"""One structure, several levers: the best widths, splits and quotas that a set of tuning levers can reach together.

Replicas of equal shape and equal speeds are one kind and solved once, so that the work follows the number of different
replicas and not of devices. What does not change stays the same object, which later steps see at a glance.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.planning.costs.cost_model import SHORT_WAY
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.levers.balance.layer_split import best_split
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.planning.levers.balance.split_search import least_slowest
from evenkeel.planning.levers.balance.tensor_width import best_stage
from evenkeel.planning.levers.balance.within_memory import fastest_within
from evenkeel.planning.levers.sequence_mix import best_mix
from evenkeel.planning.pipelined.makespan import near, pipeline_makespans
from evenkeel.planning.repair import spread_quotas
from evenkeel.planning.situation import Situation

TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA = "tensor_width", "layer_split", "micro_batch_quota"
SEQUENCE_MIX = "sequence_mix"
_SAME = 1.0 + 1e-6
_OTHER = 0.25
_UNEVEN = 1.9
_SMALL = 2
_Stages = tuple[Stage, ...]
_Replicas = tuple[Replica, ...]
_Levers = frozenset[str]


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


def _distinct(shapes: Iterable[_Stages]) -> list[_Stages]:
    """Shapes without those that were there before; they are few, and their hashes are long."""
    found: list[_Stages] = []
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return found


class _Kind:
    """Replicas of one shape and of the same speeds; its ranks are those of the first one that came."""

    def __init__(self, situation: Situation, stages: _Stages) -> None:
        self.situation, self.stages = situation, stages
        self._shapes: dict[tuple[int, str, _Levers], list[_Stages]] = {}
        self._splits: dict[tuple[bool, int, str], _Stages] = {}
        self._within: dict[tuple[int, str, bool, bool], _Stages | None] = {}
        self._rates: dict[bool, float] = {}

    def shapes(self, quota: int, schedule: str, levers: _Levers) -> list[_Stages]:
        """Shapes that the levers lead to, least changed first; the given one is the first."""
        found = self._shapes.get((quota, schedule, levers))
        if found is None:
            found = [self.stages]
            if TENSOR_WIDTH in levers and self._by_speed != self.stages:
                found.append(self._by_speed)
            if LAYER_SPLIT in levers:
                # Widths by speed are at least as good, so only they are split when both are free.
                split = self._split(found[-1], quota, schedule)
                found = _distinct([*found, split])
                if TENSOR_WIDTH in levers:
                    # What is not cut at all, as embeddings are, weighs more on a stage of few blocks.
                    small = [best_stage(self.situation, s) if s.num_blocks <= _SMALL else s for s in split]
                    found = _distinct([*found, tuple(small)])
            if levers and self.situation.device_bytes is not None:
                found = self._within_memory(found, quota, schedule, levers)
            self._shapes[quota, schedule, levers] = found
        return found

    def _within_memory(self, found: list[_Stages], quota: int, schedule: str, levers: _Levers) -> list[_Stages]:
        """Those of some shapes that fit, and the fastest that does where not all do; all of them where none does."""
        fitting = [shape for shape in found if self._fits(shape, quota, schedule)]
        widths, splits = TENSOR_WIDTH in levers, LAYER_SPLIT in levers
        if len(fitting) < len(found) and (widths or splits):
            key = quota, schedule, widths, splits
            if key not in self._within:
                self._within[key] = fastest_within(
                    self.situation, self.stages, quota, schedule, widths=widths, splits=splits
                )
            fastest = self._within[key]
            if fastest is not None:
                fitting = _distinct([*fitting, fastest])
        return fitting or found

    def _fits(self, shape: _Stages, quota: int, schedule: str) -> bool:
        return not self.situation.replica_excess_bytes(Replica(stages=shape, num_micro_batches=quota), schedule)

    def most_rate(self, *, wide: bool = False) -> float:
        """Micro-batches per second that no split gets above, with the given widths or with those by speed."""
        if wide not in self._rates:
            prefix = self.situation.seconds_to_blocks(self._by_speed if wide else self.stages)
            whole = prefix[:, -1].tolist()
            rate = sum([1.0 / each for each in whole])
            if max(whole) > _UNEVEN * min(whole):
                # Blocks are whole: for such stages that says much more, and their splits are the slowest to find.
                rate = min(rate, 1.0 / least_slowest(prefix))
            self._rates[wide] = rate
        return self._rates[wide]

    @cached_property
    def _by_speed(self) -> _Stages:
        return tuple([best_stage(self.situation, stage) for stage in self.stages])

    def _split(self, shape: _Stages, quota: int, schedule: str) -> _Stages:
        key = shape is self.stages, quota, schedule
        if key not in self._splits:
            self._splits[key] = best_split(self.situation, shape, quota, schedule)
        return self._splits[key]


class _Options:
    """Shapes that replicas of one kind may take, and how long they last with each quota; all are asked at once."""

    def __init__(self, kind: _Kind, shapes: list[_Stages], schedule: str) -> None:
        self.given = kind.stages
        self._situation, self._shapes, self._schedule = kind.situation, shapes, schedule
        self._known: dict[int, list[float]] = {0: [0.0] * len(shapes)}
        self._parts = np.array([kind.situation.parts(shape, schedule) for shape in shapes])
        self._borders = np.array([kind.situation.border_seconds(shape, schedule) for shape in shapes])

    def best_seconds(self, quota: int) -> float:
        """Pipeline seconds of the fastest shape."""
        return min(self._known.get(quota) or self._asked(quota))

    def first_within(self, seconds: float, quota: int) -> tuple[_Stages, float]:
        """The first shape that is as fast as that, and its pipeline seconds; one is."""
        *others, (last, slowest) = zip(self._shapes, self._known.get(quota) or self._asked(quota), strict=True)
        return next(((shape, taken) for shape, taken in others if taken <= seconds), (last, slowest))

    def _asked(self, quota: int) -> list[float]:
        if self._schedule in SHORT_WAY:
            quotas = near(quota, len(self.given))
            found = pipeline_makespans(self._parts, quotas.start, quotas.stop, self._borders)
            self._known.update(zip(quotas, found.T.tolist(), strict=True))
        else:
            makespan = self._situation.makespan
            self._known[quota] = [makespan(shape, quota, self._schedule) for shape in self._shapes]
        return self._known[quota]


class Tuner:
    """Tunes structures for one situation.

    Args:
        situation: The situation.
        known: Of the same situation with more or fewer spare ranks: what it found is not sought again.
    """

    def __init__(self, situation: Situation, known: "Tuner | None" = None) -> None:
        self._situation = situation
        self._tuned: dict[tuple[int, _Levers], tuple[Layout, Layout]] = {}
        self._free: dict[int, tuple[Layout, set[int]]] = {}
        self._solved: dict[tuple[int, str, _Levers], tuple[_Replicas, Mix | None, _Replicas, Mix | None]] = (
            {} if known is None else known._solved
        )
        self._shaped: dict[tuple[int, int], tuple[_Stages, _Stages, _Stages]] = {} if known is None else known._shaped
        self._replicas: dict[tuple[int, int], Replica] = {} if known is None else known._replicas
        self._kinds: dict[object, _Kind] = {} if known is None else known._kinds
        self._kind_of: dict[int, tuple[_Stages, _Kind]] = {} if known is None else known._kind_of
        self._options: dict[tuple[int, tuple[int, ...], str, _Levers], _Options] = (
            {} if known is None else known._options
        )

    def tuned(self, base: Layout, levers: Collection[str]) -> Layout:
        """The best layout that a set of levers reaches from ``base``, changed no more than that needs.

        With quotas and splits both free, the splits are solved for the quotas that they led to once more.
        """
        chosen = frozenset(levers)
        known = self._tuned.get((id(base), chosen))
        if known is None:
            known = self._tuned[id(base), chosen] = base, self._tune(base, chosen)
        return known[1]

    def mixed(self, base: Layout) -> Layout:
        """The same with the best sizes of micro-batches, and nothing else changed."""
        return self.tuned(base, (SEQUENCE_MIX,))

    def _tune(self, base: Layout, chosen: _Levers) -> Layout:
        key = id(base.replicas), base.schedule, chosen
        known = self._solved.get(key)
        if known is None or known[1] != base.mix:
            # What the id stands for is kept, so that it stays its own.
            known = self._solved[key] = base.replicas, base.mix, *self._solve(base, chosen)
        replicas, mix = known[2:]
        if mix == base.mix and all(new is old for new, old in zip(replicas, base.replicas, strict=True)):
            return base
        return replace(base, replicas=replicas, mix=mix, standbys=self._standbys(base, replicas))

    def _solve(self, base: Layout, chosen: _Levers) -> tuple[_Replicas, Mix | None]:
        """The best replicas, and the best mix; neither hangs on who is spare."""
        quotas = tuple([replica.num_micro_batches for replica in base.replicas])
        kinds = [self._kind(replica) for replica in base.replicas]
        asked: list[tuple[int, ...]] = [(quota,) for quota in quotas]
        if MICRO_BATCH_QUOTA in chosen and LAYER_SPLIT in chosen:
            asked = [(quota,) for quota in self._likely(kinds, quotas, wide=TENSOR_WIDTH in chosen)]
        options = [self._some(kind, a, base.schedule, chosen) for kind, a in zip(kinds, asked, strict=True)]
        if MICRO_BATCH_QUOTA in chosen:
            quotas = best_quotas(lambda d, quota: options[d].best_seconds(quota), quotas)
            if LAYER_SPLIT in chosen:
                for d in range(len(quotas)):
                    # The best split hangs little on the quota: it is looked for again when that is quite another one.
                    if quotas[d] and abs(quotas[d] - asked[d][0]) > _OTHER * quotas[d]:
                        options[d] = self._some(kinds[d], (*asked[d], quotas[d]), base.schedule, chosen)
                quotas = best_quotas(lambda d, quota: options[d].best_seconds(quota), quotas)
        mix = base.mix
        if SEQUENCE_MIX in chosen and self._situation.home.mix is not None:
            found = self._mixed(options, quotas, self._situation.home.mix)
            if found is not None:
                quotas, mix = found
        scales = [1.0] * len(quotas) if mix is None else mix.scales(quotas)
        slowest = max([options[d].best_seconds(quota) * scales[d] for d, quota in enumerate(quotas)]) * _SAME
        replicas = tuple(
            [
                self._replica(replica, option, quota, slowest / scale, base.schedule)
                for replica, option, quota, scale in zip(base.replicas, options, quotas, scales, strict=True)
            ]
        )
        return replicas, mix

    def _standbys(self, base: Layout, replicas: _Replicas) -> tuple[int, ...]:
        """Live ranks without a position when the replicas of a layout become others."""
        known = self._free.get(id(base))
        if known is None:
            known = self._free[id(base)] = base, set(self._situation.throughputs).difference(base.ranks)
        free = set(known[1])
        changed = [(o, n) for o, n in zip(base.replicas, replicas, strict=True) if o.stages is not n.stages]
        free.update(*[old.ranks for old, _ in changed])
        free.difference_update(*[new.ranks for _, new in changed])
        return tuple(sorted(free))

    def least_seconds(self, base: Layout, levers: Collection[str]) -> float:
        """Seconds per iteration that layouts which a set of levers reaches from ``base`` do not get below.

        Nothing is told of sets that take no time to try, those without splits. Of others as if blocks and micro-batches
        could be divided at will, and pipelines were never empty. Documents that move between replicas count as
        micro-batches that do.
        """
        if LAYER_SPLIT not in levers:
            return 0.0
        wide = TENSOR_WIDTH in levers
        rates = [self._kind(replica).most_rate(wide=wide) for replica in base.replicas]
        least = base.num_micro_batches / sum(rates)
        if MICRO_BATCH_QUOTA not in levers and SEQUENCE_MIX not in levers and base.mix is None:
            done = [replica.num_micro_batches / rate for replica, rate in zip(base.replicas, rates, strict=True)]
            least = max(least, *done)
        cost = self._situation.cost
        return cost.total(least, cost.gradients.at_least([len(replica.ranks) for replica in base.replicas]))

    def _likely(self, kinds: list[_Kind], quotas: tuple[int, ...], *, wide: bool) -> tuple[int, ...]:
        """Quotas by what replicas can do at most, where that is far from those given: splits are sought for these."""
        rates = [kind.most_rate(wide=wide) for kind in kinds]
        per_rate = sum(quotas) / sum(rates)
        found = []
        for quota, rate in zip(quotas, rates, strict=True):
            likely = max(1, round(per_rate * rate))
            found.append(likely if 2 * likely < quota else quota)
        return tuple(found)

    def _mixed(self, options: list[_Options], quotas: tuple[int, ...], rule: Mix) -> tuple[tuple[int, ...], Mix] | None:
        """Quotas and the mix for them, the fastest of some; equal quotas keep the pipelines equally full."""
        best: tuple[float, tuple[int, ...], Mix] | None = None
        for some in dict.fromkeys((quotas, tuple(spread_quotas([0] * len(quotas), sum(quotas))))):
            found = best_mix(lambda d, quota: options[d].best_seconds(quota), some, rule)
            if found is not None and (best is None or found[0] < best[0] * (1.0 - 1e-6)):
                best = found[0], some, found[1]
        return None if best is None else best[1:]

    def _kind(self, replica: Replica) -> _Kind:
        known = self._kind_of.get(id(replica.stages))
        if known is not None:
            return known[1]
        speeds = tuple(map(self._situation.throughputs.__getitem__, replica.ranks))
        links = self._links_of(replica) if self._situation.links else ()
        key = tuple([(stage.stop_block, stage.shares) for stage in replica.stages]), speeds, links
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(self._situation, replica.stages)
        self._kind_of[id(replica.stages)] = replica.stages, kind
        return kind

    def _links_of(self, replica: Replica) -> tuple[SlowLink, ...]:
        """Slow links within a replica, its ranks called 0, 1, 2 … in the order of its stages."""
        index = {rank: i for i, rank in enumerate(replica.ranks)}
        return tuple(
            [
                replace(link, ranks=tuple([index[rank] for rank in link.ranks]))
                for link in self._situation.links
                if all(rank in index for rank in link.ranks)
            ]
        )

    def _some(self, kind: _Kind, quotas: tuple[int, ...], schedule: str, levers: _Levers) -> _Options:
        """Shapes of a kind that were found for any of the quotas."""
        key = id(kind), quotas, schedule, levers
        found = self._options.get(key)
        if found is None:
            shapes = [shape for quota in quotas for shape in kind.shapes(quota, schedule, levers)]
            found = self._options[key] = _Options(kind, _distinct(shapes), schedule)
        return found

    def _replica(self, replica: Replica, options: _Options, quota: int, slowest: float, schedule: str) -> Replica:
        """The replica in the first shape that is fast enough; the same object for the same shape and quota."""
        shape, seconds = options.first_within(slowest, quota)
        stages = replica.stages
        if shape is not options.given:
            key = id(shape), id(stages)
            if key not in self._shaped:
                # What ids stand for is kept, so that they stay their own.
                self._shaped[key] = shape, stages, _with_ranks_of(shape, options.given, stages)
            stages = self._shaped[key][2]
        self._situation.learn_makespan(stages, quota, schedule, seconds)
        if stages is replica.stages and quota == replica.num_micro_batches:
            return replica
        found = self._replicas.get((id(stages), quota))
        if found is None:
            found = self._replicas[id(stages), quota] = Replica(stages=stages, num_micro_batches=quota)
        return found
