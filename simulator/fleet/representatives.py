"""Identical replicas stand for one another: a strategy for huge jobs that asks another one about a small part.

A job of hundreds of replicas has a few that differ: those with an ill device or a shape of their own. The inner
strategy is asked about these and some healthy ones, the representatives; what it answers is put back among the others,
which stay as they are. With whole micro-batches that is what it would answer about the whole job as long as there are
at least as many representatives as micro-batches that the ill replicas give away; with fewer the answer is feasible,
but slower. Prices need no correction: they follow from the rank that receives most.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question, Strategy


class Representatives:
    """Asks ``inner`` about the replicas that differ and ``num_representatives`` that do not.

    Args:
        inner: Who answers; a replica belongs where most of its ranks come from.
        num_representatives: Healthy replicas that may take work over; the first ones of the home layout.
    """

    def __init__(self, inner: Strategy, num_representatives: int = 16) -> None:
        if num_representatives < 1:
            raise ValueError(f"num_representatives is {num_representatives}: somebody must take work over, give 1")
        self._inner, self._count = inner, num_representatives
        self.name = inner.name

    def answer(self, question: Question) -> Answer:
        """The inner answer about a part, put back into the whole."""
        home = question.home
        current = question.current or operation_of(home)
        if current.routes or current.scales or current.batch_fraction < 1.0 or not current.is_plain:
            raise ValueError("representatives stand for replicas of plain layouts: the inner strategy left them")
        where = {rank: d for d, replica in enumerate(home.replicas) for rank in replica.ranks}
        now = {d: index for index, d in enumerate(_homes(current.replicas, where, range(len(home.replicas))))}
        ill = self._ill(question, where)
        differing = {
            d
            for d, replica in enumerate(home.replicas)
            if d in ill
            or d not in now
            or current.replicas[now[d]] is not replica.stages
            or current.quotas[now[d]] != replica.num_micro_batches
        }
        healthy = [d for d in range(len(home.replicas)) if d not in ill][: self._count]
        part = sorted(differing.union(healthy))
        inner = self._inner.answer(self._asked(question, current, part, now))
        if inner.operation is None:
            return inner
        return replace(inner, operation=self._whole(home, current, set(part), inner.operation, where, now))

    @staticmethod
    def _ill(question: Question, where: dict[int, int]) -> set[int]:
        dead = where.keys() - question.throughputs.keys()
        slow = {rank for rank, p in question.throughputs.items() if p != 1.0}
        return {where[rank] for rank in dead | slow if rank in where}

    @staticmethod
    def _asked(question: Question, current: Operation, part: list[int], now: dict[int, int]) -> Question:
        home = question.home
        small = Layout(
            num_blocks=home.num_blocks,
            replicas=tuple(home.replicas[d] for d in part),
            standbys=home.standbys,
            schedule=home.schedule,
        )
        running = [now[d] for d in part if d in now]
        ranks = [*(rank for d in part for rank in home.replicas[d].ranks), *home.standbys]
        speeds = {rank: question.throughputs[rank] for rank in ranks if rank in question.throughputs}
        asked = None
        if question.current is not None and running:
            asked = Operation(
                replicas=tuple(current.replicas[index] for index in running),
                quotas=tuple(current.quotas[index] for index in running),
            )
        return replace(question, home=small, current=asked, throughputs=speeds)

    @staticmethod
    def _whole(
        home: Layout,
        current: Operation,
        part: set[int],
        inner: Operation,
        where: dict[int, int],
        now: dict[int, int],
    ) -> Operation:
        found = {}
        homes = _homes(inner.replicas, where, sorted(part))
        for d, stages, quota in zip(homes, inner.replicas, inner.quotas, strict=True):
            like = home.replicas[d]
            # The very tuple of the home layout, so that who is as at home is recognised at once.
            found[d] = (like.stages if stages == like.stages else stages, quota)
        for d, index in now.items():
            if d not in part:
                found[d] = (home.replicas[d].stages, current.quotas[index])
        ordered = [found[d] for d in sorted(found)]
        return Operation(replicas=tuple(stages for stages, _ in ordered), quotas=tuple(quota for _, quota in ordered))


def _homes(
    shapes: Sequence[tuple[Stage | None, ...]], where: dict[int, int], among: Collection[int]
) -> tuple[int, ...]:
    """For each replica one of its own among the home layout's: the one from which most of its ranks come, if free."""
    found: dict[int, int] = {}
    free = dict.fromkeys(among)
    for index, stages in enumerate(shapes):
        sources = {where.get(stage.ranks[0]) for stage in stages if stage}
        only = sources.pop() if len(sources) == 1 else None
        if only is not None and only in free:
            found[index] = only
            del free[only]
    for index, stages in enumerate(shapes):
        if index not in found:
            counts = Counter(where[rank] for stage in stages if stage for rank in stage.ranks if rank in where)
            ranked = sorted((-count, home) for home, count in counts.items())
            liked = [home for _, home in ranked if home in free]
            found[index] = liked[0] if liked else next(iter(free))
            del free[found[index]]
    return tuple(found[index] for index in range(len(shapes)))
