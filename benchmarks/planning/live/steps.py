"""What the job of :mod:`~benchmarks.planning.live.fidelity` goes through: faults with their layouts, other shapes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

from evenkeel.demo.script.job import MainJob
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation

GONE = 0.0
CASES: Mapping[str, Mapping[int, float]] = {
    "rank 5 at 0.5": {5: 0.5},
    "rank 2 at 0.25": {2: 0.25},
    "rank 3 gone": {3: GONE},
    "rank 1 at 0.6, rank 6 at 0.4": {1: 0.6, 6: 0.4},
    "ranks 0 and 1 at 0.5": {0: 0.5, 1: 0.5},
    "rank 7 gone, rank 4 at 0.5": {7: GONE, 4: 0.5},
    "ranks 2 and 3 gone": {2: GONE, 3: GONE},
    "rank 0 at 0.8": {0: 0.8},
}
SHAPES: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "TP 3 and 1, 2 replicas": (((6, 3), (2, 1)), ((6, 3), (2, 1))),
    "TP 4, 2 replicas": (((8, 4),), ((8, 4),)),
    "TP 3, 2 replicas, 2 idle": (((8, 3),), ((8, 3),)),
    "TP 4 x PP 2, 1 replica": (((4, 4), (4, 4)),),
    "TP 2, 4 replicas": (((8, 2),),) * 4,
    "PP 2, 4 replicas": (((4, 1), (4, 1)),) * 4,
    "8 replicas": (((8, 1),),) * 8,
}
"""Layouts with nothing broken: of each stage of each replica its blocks and devices; devices are taken in order."""
HEALTHY: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Devices change, and then the layout.

    Attributes:
        name: What is wrong; "home" where nothing is.
        speeds: Of devices that are not healthy; 0 = gone.
        layout: Layout.
    """

    name: str
    speeds: Mapping[int, float]
    layout: Layout


def _faults(job: MainJob) -> Iterator[Step]:
    """All faults, home after each."""
    for name, speeds in CASES.items():
        live = {rank: speeds.get(rank, 1.0) for rank in job.layout.ranks if speeds.get(rank, 1.0) > GONE}
        yield Step(name=name, speeds=speeds, layout=_planned(job, live))
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


def _planned(job: MainJob, live: Mapping[int, float]) -> Layout:
    situation = Situation(
        layout=job.layout,
        home=job.layout,
        throughputs=live,
        cost=CostModel(job.model, ASSUMED_WORKLOAD),
        holders=frozenset(live),
    )
    return solve(situation).layout


def _shapes(job: MainJob) -> Iterator[Step]:
    """Layouts of other widths and other numbers of replicas, home after each."""
    for name, replicas in SHAPES.items():
        ranks = iter(job.layout.ranks)
        stages = [[(blocks, tuple(islice(ranks, width))) for blocks, width in replica] for replica in replicas]
        quota, rest = divmod(job.layout.num_micro_batches, len(replicas))
        assert not rest, f"{name}: as many micro-batches everywhere"
        layout = replace(
            job.layout,
            replicas=tuple(Replica(stages=_stages(each), num_micro_batches=quota) for each in stages),
            standbys=tuple(ranks),
        )
        yield Step(name=name, speeds=HEALTHY, layout=layout)
        yield Step(name="home", speeds=HEALTHY, layout=job.layout)


def _stages(each: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Stage, ...]:
    """Stages of one replica from the blocks and ranks of each."""
    borders = accumulate((blocks for blocks, _ in each), initial=0)
    return tuple(
        Stage(first_block=first, stop_block=first + blocks, ranks=ranks, shares=(1,) * len(ranks))
        for first, (blocks, ranks) in zip(borders, each, strict=False)
    )


PARTS: Mapping[str, Callable[[MainJob], Iterator[Step]]] = {"faults": _faults, "shapes": _shapes}
