"""Transfers and exchanges of recorded operations as the channels that the detector reads of a frame.

Who meets whom follows from the recording (:mod:`~evenkeel.attribution.graph.wiring`), worked out once for all steps
that are alike. How many bytes pass is not recorded: each channel is held against its own past.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evenkeel.attribution import OperationError, Operations
from evenkeel.attribution.graph.replay import alike_steps
from evenkeel.attribution.graph.wiring import Wiring
from evenkeel.attribution.operations import OperationType
from evenkeel.numeric.arrays import Ints
from evenkeel.services.detector.domain.frames.traffic import ChannelKind, TrafficObservation

_ENDS = {
    OperationType.FORWARD_SEND: (ChannelKind.ACTIVATION_SENT, ChannelKind.ACTIVATION_RECEIVED),
    OperationType.BACKWARD_SEND: (ChannelKind.GRADIENT_SENT, ChannelKind.GRADIENT_RECEIVED),
}
_EXCHANGES = (
    OperationType.PARAMS_ALL_GATHER,
    OperationType.GRADS_REDUCE_SCATTER,
    OperationType.SEPARATE_GRADS_ALL_REDUCE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraffic:
    """What the steps of a recording carried.

    Attributes:
        by_step: Traffic of each step; a step of which nobody can say who meets whom has none.
        notes: What a reader should know.
    """

    by_step: Mapping[int, TrafficObservation]
    notes: tuple[str, ...]


def traffic_of(operations: Operations) -> RecordedTraffic:
    """The traffic of a recording; entries are the workers of a step, ascending by rank."""
    found: dict[int, TrafficObservation] = {}
    problems: list[str] = []
    num_left_out = num_steps = 0
    for rows in alike_steps(operations):
        step = operations.select(rows[:, 0])
        num_steps += rows.shape[1]
        try:
            channels = _Channels(step)
        except OperationError as error:
            problems.append(error.problem)
            num_left_out += rows.shape[1]
            continue
        if channels.any:
            for mine in rows.T:
                found[int(operations.step[mine[0]])] = channels.observation(operations, mine)
    notes = []
    if problems:
        notes.append(f"links are not judged in {num_left_out} of {num_steps} steps: {problems[0]}")
    return RecordedTraffic(by_step=found, notes=tuple(notes))


class _Channels:
    """The channels of steps that are alike, and which operation made which stamp of theirs.

    Raises:
        OperationError: Nobody can say which operations meet.
    """

    def __init__(self, step: Operations) -> None:
        ranks, self._entries = np.unique(step.rank, return_inverse=True)
        self._num_entries = len(ranks)
        # Owner, kind, party and members of a channel to the rows of its stamps.
        stamps: dict[tuple[int, int, int, int], list[int]] = {}
        for group in Wiring(step).groups():
            kind = OperationType(step.optype[group[0]])
            owners = self._entries[group].tolist()
            if kind in _ENDS and len(group) == 2:
                for owner, row, other, end in zip(
                    owners, group.tolist(), group[::-1].tolist(), _ENDS[kind], strict=True
                ):
                    stamps.setdefault((owner, end, int(step.rank[other]), 2), []).append(row)
            elif kind in _EXCHANGES and len(group) > 1:
                number = _EXCHANGES.index(kind) + len(_EXCHANGES) * int(step.stage[group[0]])
                for owner, row in zip(owners, group.tolist(), strict=True):
                    stamps.setdefault((owner, ChannelKind.COLLECTIVE, number, len(group)), []).append(row)
        keys = sorted(stamps)
        columns = np.array(keys, dtype=np.int64).reshape(len(keys), 4)
        self._owners, self._kinds, self._parties, self._members = columns.T.copy()
        self._counts = np.array([len(stamps[key]) for key in keys], dtype=np.int64)
        sends = (ChannelKind.ACTIVATION_SENT, ChannelKind.GRADIENT_SENT)
        self._entered = _joined([stamps[key] for key in keys if key[1] != ChannelKind.COLLECTIVE])
        self._took = _joined([stamps[key] for key in keys if key[1] not in sends])

    @property
    def any(self) -> bool:
        """There is at least one."""
        return len(self._owners) > 0

    def observation(self, operations: Operations, rows: Ints) -> TrafficObservation:
        """The traffic of the step that has these rows."""
        base = float(operations.start_seconds[rows].min())
        return TrafficObservation(
            started_at_unix_seconds=np.full(self._num_entries, base),
            owners=self._owners,
            kinds=self._kinds,
            parties=self._parties,
            num_members=self._members,
            num_operations=self._counts,
            num_stamped=self._counts,
            entered_seconds=operations.start_seconds[rows[self._entered]] - base,
            took_seconds=operations.duration_seconds[rows[self._took]],
            num_bytes=np.zeros(len(self._took)),
        )


def _joined(parts: list[list[int]]) -> Ints:
    return np.array([row for part in parts for row in part], dtype=np.int64)
