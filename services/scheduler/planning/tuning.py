"""One structure, several levers: the best widths, splits and quotas that a set of tuning levers can reach together."""

from collections.abc import Collection
from dataclasses import replace

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.levers.layer_split import best_split
from services.scheduler.planning.levers.micro_batch_quota import best_quotas
from services.scheduler.planning.levers.tensor_width import best_stage
from services.scheduler.planning.repair import with_standbys
from services.scheduler.planning.situation import Situation

TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA = "tensor_width", "layer_split", "micro_batch_quota"
_SAME = 1.0 + 1e-6
_Stages = tuple[Stage, ...]
_Key = tuple[tuple[int, tuple[int, ...], tuple[float, ...]], ...]


def _relabelled(stages: _Stages, ranks: tuple[int, ...]) -> _Stages:
    """Stages whose ranks are indices into ``ranks``, with the ranks themselves."""
    return tuple(
        Stage(
            first_block=stage.first_block,
            stop_block=stage.stop_block,
            ranks=tuple(ranks[index] for index in stage.ranks),
            shares=stage.shares,
        )
        for stage in stages
    )


class Tuner:
    """Tunes structures for one situation. Replicas of equal shape and equal speeds are solved once."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._shapes: dict[tuple[_Key, int, frozenset[str]], list[_Stages]] = {}
        self._seconds: dict[tuple[_Stages, int], float] = {}

    def seconds(self, stages: _Stages, quota: int, schedule: str) -> float:
        """Pipeline seconds of a replica with a quota."""
        key = stages, quota
        if key not in self._seconds:
            situation = self._situation
            self._seconds[key] = situation.cost.makespan(stages, quota, situation.throughputs, schedule)
        return self._seconds[key]

    def shapes(self, stages: _Stages, quota: int, schedule: str, levers: frozenset[str]) -> list[_Stages]:
        """Shapes of one replica that the levers lead to, least changed first; the given one is the first."""
        ranks = tuple(rank for stage in stages for rank in stage.ranks)
        speeds = self._situation.throughputs
        key: _Key = tuple((s.stop_block, s.shares, tuple(speeds[rank] for rank in s.ranks)) for s in stages)
        found = self._shapes.get((key, quota, levers))
        if found is None:
            index = {rank: i for i, rank in enumerate(ranks)}
            local = replace(self._situation, throughputs={i: speeds[rank] for i, rank in enumerate(ranks)})
            found = [
                tuple(
                    Stage(
                        first_block=s.first_block,
                        stop_block=s.stop_block,
                        ranks=tuple(index[rank] for rank in s.ranks),
                        shares=s.shares,
                    )
                    for s in stages
                )
            ]
            if TENSOR_WIDTH in levers:
                found.append(tuple(best_stage(local, stage) for stage in found[0]))
            if LAYER_SPLIT in levers:
                found += [best_split(local, shape, quota, schedule) for shape in found]
            found = list(dict.fromkeys(found))
            self._shapes[key, quota, levers] = found
        return [_relabelled(shape, ranks) for shape in found]

    def tuned(self, base: Layout, levers: Collection[str]) -> Layout:
        """The best layout that a set of levers reaches from ``base``, changed no more than that needs.

        With quotas and splits both free, the splits are solved for the quotas that they led to once more.
        """
        chosen = frozenset(levers)
        quotas = tuple(replica.num_micro_batches for replica in base.replicas)
        options = [self.shapes(r.stages, q, base.schedule, chosen) for r, q in zip(base.replicas, quotas, strict=True)]
        for again in (True, False):

            def seconds_of(d: int, quota: int, options: list[list[_Stages]] = options) -> float:
                return min(self.seconds(shape, quota, base.schedule) for shape in options[d])

            if MICRO_BATCH_QUOTA in chosen:
                quotas = best_quotas(seconds_of, quotas)
            if not again or not {MICRO_BATCH_QUOTA, LAYER_SPLIT} <= chosen:
                break
            for d, replica in enumerate(base.replicas):
                if quotas[d] not in (0, replica.num_micro_batches):
                    more = self.shapes(replica.stages, quotas[d], base.schedule, chosen)
                    options[d] = list(dict.fromkeys([*options[d], *more]))
        slowest = max(seconds_of(d, quota) for d, quota in enumerate(quotas))
        replicas = tuple(
            Replica(
                stages=next(s for s in options[d] if self.seconds(s, quota, base.schedule) <= slowest * _SAME),
                num_micro_batches=quota,
            )
            for d, quota in enumerate(quotas)
        )
        bare = Layout(num_blocks=base.num_blocks, replicas=replicas, schedule=base.schedule)
        return with_standbys(bare, self._situation.throughputs.keys())
