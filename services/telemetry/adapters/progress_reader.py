"""Progress reports of many records at once: what the rules need as numbers, the rest as the bytes that it is."""

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.telemetry.adapters.wire_cursor import Wire, WireCursor
from services.telemetry.domain.observed import ArrivedProgress
from services.telemetry.domain.sample_block import Bools, Ints
from services.telemetry.domain.validate import MAX_COUNT, MAX_UNIX_SECONDS, HostileRecordError, check_progress

_NUMBER = {field.name: field.number for field in pb.Progress.DESCRIPTOR.fields}
_MAX_TEXTS = 4096
_MAX_TEXT_BYTES = 1024


class ProgressReader:
    """Reads reports; remembers the operations, with the ranks that they wait for, that it has checked."""

    def __init__(self) -> None:
        """Starts knowing none."""
        self._checked: set[tuple[bytes, bytes]] = {(b"", b"")}

    def newest(
        self, wire: Wire, owners: Ints, begins: Ints, ends: Ints, ranks: Ints, incarnations: Ints, believed: Bools
    ) -> list[ArrivedProgress | None]:
        """The newest report of each record; None where there is none.

        Args:
            wire: Where they are.
            owners: Record of each report, ascending.
            begins: First byte of each.
            ends: Behind its last byte.
            ranks: Rank of each record.
            incarnations: Which process of the rank.
            believed: Becomes False for records with reports that are not plain, or that nobody can have made.
        """
        newest: list[ArrivedProgress | None] = [None] * len(ranks)
        if not len(owners):
            return newest
        cursor, buffer = WireCursor(wire, begins, ends), wire.buffer
        at_unix_seconds = cursor.doubles(_NUMBER["at_unix_seconds"])
        iterations, epochs = cursor.int64s(_NUMBER["iteration"]), cursor.int64s(_NUMBER["epoch"])
        counts = cursor.int64s(_NUMBER["operation_count"])
        operations = cursor.texts(_NUMBER["operation"])
        seconds = cursor.doubles(_NUMBER["seconds_in_operation"])
        waits = cursor.texts(_NUMBER["waiting_for"])
        cursor.end()
        plain = cursor.plain & (np.maximum(iterations, epochs) < MAX_COUNT)
        for each in (at_unix_seconds, seconds):
            plain &= (each >= 0.0) & (each <= MAX_UNIX_SECONDS)  # NaN is not
        reports = zip(
            owners.tolist(),
            ranks[owners].tolist(),
            incarnations[owners].tolist(),
            counts.tolist(),
            seconds.tolist(),
            *(each.tolist() for each in (begins, ends, *operations, *waits, plain)),
            strict=True,
        )
        for owner, rank, incarnation, count, spent, begin, end, text, text_end, wait, wait_end, sound in reports:
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
