"""One step's operations as a graph: what waits for what.

Each worker has six streams that run in order: compute (input and garbage collection too), exchange between replicas,
and one each for sending and receiving activations and gradients. Between streams: a receive comes before the compute
that uses it and after the compute before that one, a send after the compute that made it; parameters are gathered
before a chunk's first forward; gradients are reduced after its last backward. The operations of a collective, or of a
send and its receive, form a group: it ends for all after the last of them has arrived.
"""

from dataclasses import dataclass

import numpy as np

from evenkeel.attribution.graph.wiring import Turn, Wiring
from evenkeel.attribution.operations import OperationError, Operations
from evenkeel.numeric.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Groups whose predecessors all lie in earlier levels.

    Attributes:
        sources: Operations waited for, group by group.
        offsets: Where in ``sources`` each group begins; empty for the first level, which waits for nothing.
        members: Operations of these groups.
        group_of: For each of ``members``, which of the level's groups it is of.
    """

    sources: Ints
    offsets: Ints
    members: Ints
    group_of: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The graph of one step; steps with the same structure share it.

    Attributes:
        num_operations: Operations, numbered as in the table that it was built from.
        group: The group of each operation.
        levels: Groups in an order in which they can be worked out.
    """

    num_operations: int
    group: Ints
    levels: tuple[_Level, ...]

    def ends(self, durations: Floats) -> Floats:
        """When each operation ends, seconds after the step began.

        Args:
            durations: One row an operation, one column a replay: its own time for a computation; for a group, the time
                from the last arrival to its end.
        """
        ends = np.zeros_like(durations)
        for level in self.levels:
            if len(level.offsets):
                ready = np.maximum.reduceat(ends[level.sources], level.offsets, axis=0)
                ends[level.members] = ready[level.group_of] + durations[level.members]
            else:
                ends[level.members] = durations[level.members]
        return ends

    def step_seconds(self, durations: Floats) -> Floats:
        """How long the step takes, one value a column of ``durations``."""
        found: Floats = self.ends(durations).max(axis=0)
        return found


def build_graph(operations: Operations, turns: frozenset[Turn] = frozenset()) -> Graph:
    """The graph of one step.

    Args:
        operations: The operations of one step of all workers.
        turns: What waited for transfers beyond what the paper says.

    Raises:
        OperationError: Operations are missing, or their order contradicts itself.
    """
    wiring = Wiring(operations, turns)
    sources, targets = wiring.edges()
    group = np.arange(len(operations), dtype=np.int64)
    for members in wiring.groups():
        group[members] = members[0]
    _, group = np.unique(group, return_inverse=True)
    return Graph(num_operations=len(operations), group=group, levels=_levels(operations, group, sources, targets))


def _levels(operations: Operations, group: Ints, sources: Ints, targets: Ints) -> tuple[_Level, ...]:
    """Sorts the groups by the length of the longest chain that leads to them."""
    num_groups = int(group.max()) + 1
    edges = np.unique(np.stack([sources, group[targets]]), axis=1)
    sources, into = edges
    depth = np.zeros(num_groups, dtype=np.int64)
    waiting = np.bincount(into, minlength=num_groups)
    order = np.argsort(group[sources], kind="stable")
    followers, starts = into[order], np.searchsorted(group[sources][order], np.arange(num_groups + 1))
    ready = np.flatnonzero(waiting == 0).tolist()
    done = 0
    while ready:
        current = ready.pop()
        done += 1
        for follower in followers[starts[current] : starts[current + 1]].tolist():
            depth[follower] = max(depth[follower], depth[current] + 1)
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if done < num_groups:
        stuck = int(np.flatnonzero(waiting[group] > 0)[0])
        raise OperationError(
            f"step {operations.step[stuck]}: operations wait for each other in a circle, for example "
            f"{operations.optype[stuck]} {operations.sequence[stuck]} of dp_rank {operations.dp_rank[stuck]} stage "
            f"{operations.stage[stuck]}; check seq_id and start_ts"
        )
    return tuple(_level(number, depth, group, sources, into) for number in range(int(depth.max()) + 1))


def _level(number: int, depth: Ints, group: Ints, sources: Ints, into: Ints) -> _Level:
    groups = np.flatnonzero(depth == number)
    members = np.flatnonzero(depth[group] == number)
    mine = np.flatnonzero(depth[into] == number)
    mine = mine[np.argsort(into[mine], kind="stable")]
    offsets = np.searchsorted(into[mine], groups) if number else np.zeros(0, dtype=np.int64)
    return _Level(
        sources=sources[mine], offsets=offsets, members=members, group_of=np.searchsorted(groups, group[members])
    )
