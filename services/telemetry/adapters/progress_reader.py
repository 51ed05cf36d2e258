"""Progress reports of many records at once: what the rules need as numbers, the rest as the bytes that it is."""

import numpy as np
from google.protobuf.message import DecodeError

from evenkeel.numeric.arrays import Bools, Bytes, Floats, Ints, Words
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.adapters.wire_scan import DELIMITED, DOUBLE, NOT_PLAIN, VARINT, delimited, varint, word
from evenkeel.services.telemetry.domain.observed import ArrivedProgress
from evenkeel.services.telemetry.domain.validate import MAX_COUNT, MAX_UNIX_SECONDS, HostileRecordError, check_progress
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_FIELDS = pb.Progress.DESCRIPTOR.fields_by_name
_AT, _OPERATION, _SECONDS, _WAITING = (
    _FIELDS[name].number for name in ("at_unix_seconds", "operation", "seconds_in_operation", "waiting_for")
)
_ITERATION, _EPOCH, _COUNT = (_FIELDS[name].number for name in ("iteration", "epoch", "operation_count"))
_MAX_TEXTS = 4096
_MAX_TEXT_BYTES = 1024


class ProgressReader:
    """Reads reports; remembers the operations, with the ranks that they wait for, that it has checked."""

    def __init__(self) -> None:
        """Starts knowing none."""
        self._checked: set[tuple[bytes, bytes]] = {(b"", b"")}

    def newest(
        self, wire: Bytes, buffer: bytes, reports: Ints, heads: Ints, believed: Bools
    ) -> dict[int, ArrivedProgress]:
        """The newest report of each record that has any, by the record's row.

        Args:
            wire: Where they are.
            buffer: The same as bytes.
            reports: Record of each report, ascending, its begin and its end.
            heads: Rank and incarnation of each record.
            believed: Becomes False for records with reports that are not plain, or that nobody can have made.
        """
        newest: dict[int, ArrivedProgress] = {}
        size = len(reports)
        if not size:
            return newest
        counts, seconds = np.zeros(size, dtype=np.int64), np.zeros((size, 2))
        texts, plain = np.zeros((size, 4), dtype=np.int64), np.empty(size, dtype=np.bool_)
        _scan(wire, reports, counts, seconds, seconds.view(np.uint64), texts, plain)
        rows = zip(
            reports.tolist(),
            heads[reports[:, 0], :2].tolist(),
            counts.tolist(),
            seconds[:, 1].tolist(),
            texts.tolist(),
            plain.tolist(),
            strict=True,
        )
        for (owner, begin, end), (rank, incarnation), count, spent, (text, text_end, wait, wait_end), sound in rows:
            raw = buffer[begin:end]
            if not sound or not self._known(buffer[text:text_end], buffer[wait:wait_end], raw):
                believed[owner] = False
            newest[owner] = ArrivedProgress(rank, incarnation, count, spent, raw)
        return newest

    def _known(self, operation: bytes, waiting_for: bytes, raw: bytes) -> bool:
        if (operation, waiting_for) in self._checked:
            return True
        try:
            check_progress(pb.Progress.FromString(raw))
        except (HostileRecordError, DecodeError):
            return False
        if len(operation) + len(waiting_for) <= _MAX_TEXT_BYTES:
            if len(self._checked) >= _MAX_TEXTS:
                self._checked = {(b"", b"")}
            self._checked.add((operation, waiting_for))
        return True


@compiled
def _scan(wire: Bytes, reports: Ints, counts: Ints, seconds: Floats, bits: Words, texts: Ints, plain: Bools) -> None:
    """Fills what comes after ``reports``.

    Args:
        wire: Where they are.
        reports: Record, begin and end of each.
        counts: Its count of operations.
        seconds: When it was made, and how long its operation has lasted.
        bits: Those of ``seconds``.
        texts: Begin and end of its operation, and of the ranks that it waits for.
        plain: Whether it is as protobuf writes it, with numbers that somebody can have meant.
    """
    for row in range(len(reports)):
        at, stop = reports[row, 1], reports[row, 2]
        last, sound = 0, True
        while sound and at < stop:
            tag = int(wire[at])
            field, kind = tag >> 3, tag & 7
            if field <= last:
                sound = False
            elif kind == VARINT and _ITERATION <= field <= _COUNT:
                value, at = varint(wire, at + 1, stop)
                if field == _COUNT:
                    counts[row] = value
                sound = at != NOT_PLAIN and (field == _COUNT or value < MAX_COUNT)
            elif kind == DOUBLE and field in (_AT, _SECONDS) and at + 9 <= stop:
                bits[row, 0 if field == _AT else 1] = word(wire, at + 1)
                at += 9
            elif kind == DELIMITED and field in (_OPERATION, _WAITING):
                begin, at = delimited(wire, at + 1, stop)
                part = 0 if field == _OPERATION else 2
                texts[row, part], texts[row, part + 1] = begin, at
                sound = at != NOT_PLAIN
            else:
                sound = False
            last = field
        for column in range(2):
            sound = sound and 0.0 <= seconds[row, column] <= MAX_UNIX_SECONDS  # NaN is neither
        plain[row] = sound
