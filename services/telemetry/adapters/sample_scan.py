"""Samples out of their bytes, all of a batch in one compiled step: every field as a column."""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Bools, Bytes, Floats, Ints, Words
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.adapters.wire_scan import (
    DELIMITED,
    DOUBLE,
    LARGEST_INT32,
    NOT_PLAIN,
    VARINT,
    delimited,
    varint,
    word,
)
from evenkeel.services.telemetry.domain.sample_block import COLUMNS
from evenkeel.services.telemetry.domain.validate import MAX_MICRO_BATCHES
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_FIELDS = pb.Sample.DESCRIPTOR.fields_by_name
_ITERATION, _EPOCH = _FIELDS["iteration"].number, _FIELDS["epoch"].number
_STARTED, _WALL = _FIELDS["started_at_unix_seconds"].number, _FIELDS["wall_seconds"].number
_COMPUTE, _WAITING, _POSITION = (_FIELDS[name].number for name in ("compute", "waiting", "position"))
_LOSS, _NORM = _FIELDS["loss"].number, _FIELDS["gradient_norm"].number
_MEMORY, _MARK = _FIELDS["peak_memory_bytes"].number, _FIELDS["mark"].number
_LISTS, _TRAFFIC, _KEPT = (_FIELDS[name].number for name in ("micro_batches", "traffic", "kept_micro_batches"))
# Each submessage's numbers are columns beside one another, in the order of its fields.
_STARTED_COLUMN, _COMPUTE_COLUMN, _WAITING_COLUMN, _POSITION_COLUMN, _MEMORY_COLUMN, _MARK_COLUMN, _LOSS_COLUMN = (
    COLUMNS.index(name)
    for name in (
        "started_at_unix_seconds",
        "forward_seconds",
        "tensor_wait_seconds",
        "replicas",
        "peak_memory_bytes",
        "marks",
        "losses",
    )
)
_NUM_KINDS, _NUM_SHARES = 4, 3


@dataclass(frozen=True, slots=True)
class ScannedSamples:
    """What lies in some samples; of one that is not plain no number means anything.

    Attributes:
        keys: Rows iteration and epoch.
        numbers: One row a sample, one column each of ``COLUMNS``; 0 where nothing was said.
        has: Rows: whether a loss, and whether a gradient norm was reported.
        parts: One row a sample: begin and end of its micro-batches, of its traffic, of its kept micro-batches.
        plain: Which samples are.
    """

    keys: Ints
    numbers: Floats
    has: Bools
    parts: Ints
    plain: Bools


def scan_samples(wire: Bytes, begins: Ints, ends: Ints) -> ScannedSamples:
    """Reads samples.

    Args:
        wire: Where they are.
        begins: First byte of each.
        ends: Behind its last byte.
    """
    size = len(begins)
    found = ScannedSamples(
        np.zeros((2, size), dtype=np.int64),
        np.zeros((size, len(COLUMNS))),
        np.zeros((2, size), dtype=np.bool_),
        np.empty((size, 6), dtype=np.int64),
        np.empty(size, dtype=np.bool_),
    )
    bits = found.numbers.view(np.uint64)
    begins, ends = np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    _scan(wire, begins, ends, found.keys, found.numbers, bits, found.has, found.parts, found.plain)
    return found


@compiled
def _scan(
    wire: Bytes,
    begins: Ints,
    ends: Ints,
    keys: Ints,
    numbers: Floats,
    bits: Words,
    has: Bools,
    parts: Ints,
    plain: Bools,
) -> None:
    """Fills what comes after ``ends``; ``bits`` are those of ``numbers``."""
    for row in range(len(begins)):
        at, stop = begins[row], ends[row]
        parts[row, :] = at
        last, count, sound = 0, 0, True
        while sound and at < stop:
            tag = int(wire[at])
            field, kind = tag >> 3, tag & 7
            count = count + 1 if field == last else 1
            if field < last or (count > 1 and field != _LISTS and field != _KEPT) or count > MAX_MICRO_BATCHES:
                sound = False
            elif kind == VARINT and (field <= _EPOCH or field in (_MEMORY, _MARK)):
                value, at = varint(wire, at + 1, stop)
                if field == _MEMORY:
                    numbers[row, _MEMORY_COLUMN] = value
                elif field == _MARK:
                    numbers[row, _MARK_COLUMN] = value
                    sound = value <= LARGEST_INT32
                else:
                    keys[field - _ITERATION, row] = value
                sound = sound and at != NOT_PLAIN
            elif kind == DOUBLE and at + 9 <= stop and (_STARTED <= field <= _WALL or _LOSS <= field <= _NORM):
                column = _STARTED_COLUMN + field - _STARTED
                if field >= _LOSS:
                    column = _LOSS_COLUMN + field - _LOSS
                    has[field - _LOSS, row] = True
                bits[row, column] = word(wire, at + 1)
                at += 9
            elif kind == DELIMITED:
                tag_at = at
                begin, at = delimited(wire, at + 1, stop)
                if at == NOT_PLAIN:
                    sound = False
                elif field in (_COMPUTE, _WAITING, _POSITION):
                    column, num_integers, num_fields = _POSITION_COLUMN, _NUM_SHARES, 2 * _NUM_SHARES
                    if field != _POSITION:
                        column = _COMPUTE_COLUMN if field == _COMPUTE else _WAITING_COLUMN
                        num_integers, num_fields = 0, _NUM_KINDS
                    sound = _read_numbers(wire, begin, at, numbers, bits, row, column, num_integers, num_fields)
                elif field in (_LISTS, _TRAFFIC, _KEPT):
                    part = 0 if field == _LISTS else 2 if field == _TRAFFIC else 4
                    if count == 1:
                        parts[row, part] = tag_at
                    parts[row, part + 1] = at
                else:
                    sound = False
            else:
                sound = False
            last = field
        plain[row] = sound
        if not sound:
            parts[row, :] = begins[row]
            numbers[row, :] = 0.0


@compiled
def _read_numbers(
    wire: Bytes,
    at: int,
    stop: int,
    numbers: Floats,
    bits: Words,
    row: int,
    column: int,
    num_integers: int,
    num_fields: int,
) -> bool:
    """A submessage's numbers, first some int32, then doubles, into columns side by side; whether it is plain."""
    last = 0
    while at < stop:
        tag = int(wire[at])
        field, kind = tag >> 3, tag & 7
        if field <= last or field > num_fields:
            return False
        if kind == VARINT and field <= num_integers:
            value, at = varint(wire, at + 1, stop)
            if at == NOT_PLAIN or value > LARGEST_INT32:
                return False
            numbers[row, column + field - 1] = value
        elif kind == DOUBLE and field > num_integers and at + 9 <= stop:
            bits[row, column + field - 1] = word(wire, at + 1)
            at += 9
        else:
            return False
        last = field
    return True
