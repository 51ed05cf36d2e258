"""Operations between ranks from the wire: columns of all samples, end to end."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.traffic import TrafficObservation, stamps_entered, stamps_took
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

Ints = npt.NDArray[np.int64]

_MICROSECOND = 1e-6


def traffic_from_protos(
    traffics: Sequence[pb.Traffic], started_at_unix_seconds: npt.NDArray[np.float64]
) -> TrafficObservation | None:
    """The traffic of a frame's samples; None when none of them has any. A sample whose columns do not fit has none.

    Args:
        traffics: One an entry, empty where the sample has none; or no one at all.
        started_at_unix_seconds: Start of the iteration, one an entry.
    """
    told = [entry for entry, traffic in enumerate(traffics) if traffic.kinds]
    if not told:
        return None
    columns = _Columns(traffics, told)
    # Twice at most: columns of unequal length are found first, since the rest cannot be looked at while there are some.
    while not all(fits := columns.fits()):
        told = [entry for entry, fit in zip(told, fits, strict=True) if fit]
        if not told:
            return None
        columns = _Columns(traffics, told)
    return columns.observation(started_at_unix_seconds)


class _Columns:
    """Packed columns of some samples, appended to one another."""

    def __init__(self, traffics: Sequence[pb.Traffic], entries: Sequence[int]) -> None:
        self._entries = entries
        kinds: list[int] = []
        parties: list[int] = []
        members: list[int] = []
        operations: list[int] = []
        stamped: list[int] = []
        entered: list[int] = []
        took: list[int] = []
        num_bytes: list[int] = []
        lengths: list[tuple[int, ...]] = []
        for entry in entries:
            traffic = traffics[entry]
            lengths.append(
                (
                    len(traffic.kinds),
                    len(traffic.parties),
                    len(traffic.num_members),
                    len(traffic.num_operations),
                    len(traffic.num_stamped),
                    len(traffic.entered_microseconds),
                    len(traffic.took_microseconds),
                    len(traffic.stamped_bytes),
                )
            )
            kinds.extend(traffic.kinds)
            parties.extend(traffic.parties)
            members.extend(traffic.num_members)
            operations.extend(traffic.num_operations)
            stamped.extend(traffic.num_stamped)
            entered.extend(traffic.entered_microseconds)
            took.extend(traffic.took_microseconds)
            num_bytes.extend(traffic.stamped_bytes)
        self._lengths = np.array(lengths, dtype=np.int64).reshape(len(entries), 8)
        self._kinds = np.array(kinds, dtype=np.int64)
        self._per_channel = [np.array(column, dtype=np.int64) for column in (parties, members, operations, stamped)]
        self._entered = np.array(entered, dtype=np.float64)
        self._took = np.array(took, dtype=np.float64)
        self._bytes = np.array(num_bytes, dtype=np.float64)

    def fits(self) -> list[bool]:
        """For each sample, whether its columns are as long as they say of one another."""
        lengths, stamped = self._lengths, self._per_channel[3]
        if (lengths[:, 1:5] != lengths[:, :1]).any():
            whole = (lengths[:, 1:5] == lengths[:, :1]).all(axis=1)
            return [bool(fit) for fit in whole]
        owners = np.repeat(np.arange(len(lengths)), lengths[:, 0])
        num_entered = np.bincount(owners, stamps_entered(self._kinds, stamped), len(lengths))
        num_took = np.bincount(owners, stamps_took(self._kinds, stamped), len(lengths))
        whole = (num_entered == lengths[:, 5]) & (num_took == lengths[:, 6]) & (lengths[:, 6] == lengths[:, 7])
        return [bool(fit) for fit in whole]

    def observation(self, started: npt.NDArray[np.float64]) -> TrafficObservation:
        """The columns as arrays."""
        parties, members, operations, stamped = self._per_channel
        return TrafficObservation(
            started_at_unix_seconds=np.where(np.isfinite(started), started, 0.0),
            owners=np.repeat(np.array(self._entries, dtype=np.int64), self._lengths[:, 0]),
            kinds=self._kinds,
            parties=parties,
            num_members=members,
            num_operations=operations,
            num_stamped=stamped,
            entered_seconds=self._entered * _MICROSECOND,
            took_seconds=self._took * _MICROSECOND,
            num_bytes=self._bytes,
        )
