"""Which link each communication goes over, and which links are slow.

A link joins two workers and is named by their ranks, "2-3". What a stage's replicas exchange goes over all of their
links at once and is named by the stage, "replicas of stage 1".
"""

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.causes.sequences import medians
from evenkeel.attribution.graph.replay import Replay
from evenkeel.attribution.operations import Operations, OperationType
from evenkeel.numeric.arrays import Floats

SLOW = 1.3
"""A link whose operations take so many times the usual is slow."""

_OF_THE_SLOWEST = 0.5
_TRANSFERS = (
    OperationType.FORWARD_SEND,
    OperationType.FORWARD_RECV,
    OperationType.BACKWARD_SEND,
    OperationType.BACKWARD_RECV,
)
_EXCHANGES = (
    OperationType.PARAMS_ALL_GATHER,
    OperationType.GRADS_REDUCE_SCATTER,
    OperationType.SEPARATE_GRADS_ALL_REDUCE,
)


def links_of(replay: Replay) -> npt.NDArray[np.str_]:
    """The name of the link of each operation; empty for what goes over none, or over all of them."""
    operations = replay.operations
    names = np.full(len(operations), "", dtype="<U48")
    transfers = replay.meets & np.isin(operations.optype, _TRANSFERS)
    for structure in replay.structures:
        group = structure.graph.group
        low = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
        high = np.full(int(group.max()) + 1, -1)
        rank = operations.rank[structure.rows[:, 0]]
        np.minimum.at(low, group, rank)
        np.maximum.at(high, group, rank)
        of_group = np.array([f"{one}-{other}" for one, other in zip(low.tolist(), high.tolist(), strict=True)])
        for rows in structure.rows.T:
            names[rows] = np.where(transfers[rows], of_group[group], "")
    exchanges = replay.meets & np.isin(operations.optype, _EXCHANGES)
    names[exchanges] = [f"replicas of stage {stage}" for stage in operations.stage[exchanges].tolist()]
    return names


def by_slowness(operations: Operations, links: npt.NDArray[np.str_], seconds: Floats) -> dict[str, float]:
    """How many times the usual each link usually takes, the slowest first; usual is the median of the same kind."""
    carried = np.flatnonzero(links != "")
    relative = np.zeros(len(operations))
    for kind in np.unique(operations.optype[carried]):
        rows = carried[operations.optype[carried] == kind]
        relative[rows] = seconds[rows] / max(float(np.median(seconds[rows])), 1e-9)
    names, place = np.unique(links[carried], return_inverse=True)
    middles = medians(place.ravel(), relative[carried]) if len(carried) else np.zeros(0)
    return dict(sorted(zip(names.tolist(), middles.tolist(), strict=True), key=lambda pair: -pair[1]))


def slow_links(slowness: dict[str, float]) -> tuple[str, ...]:
    """Links that are slow, and at least half as much as the slowest."""
    worst = max(slowness.values(), default=1.0)
    least = max(SLOW, 1 + _OF_THE_SLOWEST * (worst - 1))
    return tuple(name for name, times in slowness.items() if times >= least)
