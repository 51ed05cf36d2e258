"""All steps of a recording, replayed with other durations than they had."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.attribution.graph.graph import Graph, build_graph
from evenkeel.attribution.graph.wiring import Turn
from evenkeel.attribution.operations import LOCAL, Operations, OperationType
from evenkeel.numeric.arrays import Floats, Ints

_LARGEST_BATCH = 4_000_000
"""Durations worked on at once: bounds the memory of a replay at some 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Steps whose operations form the same graph: ``rows`` has one column a step."""

    graph: Graph
    rows: Ints
    steps: Ints


class Replay:
    """A recording as graphs, and what its operations take of their own, waiting excluded.

    Args:
        operations: The recording.
        turns: What waited for transfers beyond what the paper says.

    Attributes:
        turns: The same.
        structures: The graphs, and which steps have which.
        actual: What each operation takes of its own.
        ideal: What it would take if all of its type were alike.
        meets: Whether others take part in it, as in a transfer.
        steps: The steps, ascending.

    Raises:
        OperationError: A step's operations form no graph.
    """

    def __init__(self, operations: Operations, turns: frozenset[Turn] = frozenset()) -> None:
        self.operations = operations
        self.turns = turns
        self.structures = _structures(operations, turns)
        self.actual = np.zeros(len(operations))
        self.meets = np.zeros(len(operations), dtype=np.bool_)
        ends = operations.end_seconds
        for structure in self.structures:
            meets = np.bincount(structure.graph.group)[structure.graph.group] > 1
            for rows in structure.rows.T:
                self.meets[rows] = meets
                self.actual[rows] = _own_seconds(structure.graph.group, operations.start_seconds[rows], ends[rows])
        self.ideal = _ideal(operations.optype, self.actual)
        self.steps = np.concatenate([structure.steps for structure in self.structures])
        order = np.argsort(self.steps, kind="stable")
        self._order, self.steps = order, self.steps[order]

    @property
    def num_structures(self) -> int:
        """Different graphs among the steps; 1 when all steps ran the same schedule."""
        return len(self.structures)

    def step_seconds(self, durations: Floats) -> Floats:
        """Seconds of each step, in the order of :attr:`steps`, with these durations."""
        found: Floats = self.many_step_seconds([durations])[0]
        return found

    def many_step_seconds(self, scenarios: Iterable[Floats]) -> Floats:
        """Seconds of each step under each scenario: one row a scenario, one column a step."""
        waiting: list[Floats] = []
        found: list[Floats] = []
        for durations in scenarios:
            waiting.append(durations)
            if len(waiting) * len(self.operations) >= _LARGEST_BATCH:
                found.append(self._batch(waiting))
                waiting = []
        if waiting:
            found.append(self._batch(waiting))
        return np.concatenate(found) if found else np.zeros((0, len(self.steps)))

    def observed_seconds(self) -> Floats:
        """What each step took as it was recorded, first start to last end."""
        starts, ends = self.operations.start_seconds, self.operations.end_seconds
        parts = [ends[one.rows].max(axis=0) - starts[one.rows].min(axis=0) for one in self.structures]
        return np.concatenate(parts)[self._order]

    def _batch(self, scenarios: Sequence[Floats]) -> Floats:
        durations = np.stack(scenarios, axis=-1)
        parts = []
        for structure in self.structures:
            num_rows, num_steps = structure.rows.shape
            columns = durations[structure.rows].reshape(num_rows, num_steps * len(scenarios))
            parts.append(structure.graph.step_seconds(columns).reshape(num_steps, len(scenarios)))
        found: Floats = np.concatenate(parts)[self._order].T
        return found


def alike_steps(operations: Operations) -> list[Ints]:
    """Steps with the same operations in the same order: the rows of each such set, one column a step."""
    borders = np.flatnonzero(np.diff(operations.step)) + 1
    alike: dict[bytes, list[Ints]] = {}
    for rows in np.split(np.arange(len(operations)), borders):
        alike.setdefault(_signature(operations, rows), []).append(rows)
    return [np.stack(members, axis=1) for members in alike.values()]


def _structures(operations: Operations, turns: frozenset[Turn]) -> tuple[Structure, ...]:
    return tuple(
        Structure(graph=build_graph(operations.select(rows[:, 0]), turns), rows=rows, steps=operations.step[rows[0]])
        for rows in alike_steps(operations)
    )


def _signature(operations: Operations, rows: Ints) -> bytes:
    """Equal for steps with the same operations, whose workers computed in the same order."""
    start = operations.start_seconds[rows]
    worker = operations.dp_rank[rows] * (int(operations.stage.max()) + 1) + operations.stage[rows]
    computes = np.char.endswith(operations.optype[rows], "compute")
    order = np.lexsort((start, worker))
    columns = np.stack([worker, operations.sequence[rows], operations.chunk[rows], operations.global_chunk[rows]])
    micro_batches = operations.micro_batch[rows]
    return b"|".join(
        (
            columns.tobytes(),
            micro_batches.tobytes(),
            operations.optype[rows].tobytes(),
            order[computes[order]].tobytes(),
        )
    )


def _own_seconds(group: Ints, starts: Floats, ends: Floats) -> Floats:
    """What an operation takes once all who meet in it have arrived. Clocks are not perfect: never below 0."""
    last = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(last, group, starts)
    found: Floats = np.maximum(ends - last[group], 0.0)
    return found


def _ideal(optype: npt.NDArray[np.str_], actual: Floats) -> Floats:
    """What each operation takes when all of its type are alike: the mean of computations, the median of transfers.

    An ideal step collects no garbage: where others do not pause at the same time, a pause costs all of them.
    """
    ideal = np.empty_like(actual)
    for kind in np.unique(optype):
        rows = optype == kind
        if kind == OperationType.GARBAGE_COLLECTION:
            ideal[rows] = 0.0
            continue
        ideal[rows] = np.mean(actual[rows]) if kind in LOCAL else np.median(actual[rows])
    return ideal
