"""Lists of micro-batches, as they lie in samples, into arrays: each list once, however many ranks share it."""

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from evenkeel.numeric.arrays import Bools, Bytes, Floats, Ints, Words
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.adapters.wire_scan import (
    DOUBLE,
    LARGEST_INT32,
    NOT_PLAIN,
    VARINT,
    delimited,
    varint,
    word,
)
from evenkeel.services.telemetry.domain.sample_block import Workloads
from evenkeel.services.telemetry.domain.validate import MAX_SQUARES, HostileRecordError, check_micro_batches
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_FIELDS = pb.MicroBatch.DESCRIPTOR.fields_by_name
_INDEX, _TOKENS, _SQUARES = (_FIELDS[name].number for name in ("index", "tokens", "sum_of_squares"))
# A tag and a length.
_LEAST_BYTES = 2

_Columns = tuple[Ints, Ints, Ints, Floats]
"""List, index, tokens and sum of squares of each micro-batch."""


def read_workloads(wire: Bytes, begins: Ints, ends: Ints) -> tuple[Workloads, list[int]]:
    """The lists, and the numbers of those that nobody can have meant, which are empty.

    Args:
        wire: Where they are.
        begins: First byte of each: samples of nothing but their micro-batches.
        ends: Behind its last byte.
    """
    columns, plain = _read_at_once(wire, begins, ends)
    hostile: list[int] = []
    if not plain.all():
        raws = [wire[begin:end].tobytes() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        columns = _with_the_others(columns, raws, plain, hostile)
    owners, indexes, tokens, squares = columns
    sizes = np.bincount(owners, minlength=len(begins))
    return Workloads(sizes=sizes, indexes=indexes, tokens=tokens, sums_of_squares=squares), hostile


def _with_the_others(columns: _Columns, raws: Sequence[bytes], plain: Bools, hostile: list[int]) -> _Columns:
    """The plain lists, which are in the columns, and the others one by one, in order; ``hostile`` gets the refused."""
    parts: list[_Columns] = [columns]
    for number in np.flatnonzero(~plain).tolist():
        try:
            micro_batches = pb.Sample.FromString(raws[number]).micro_batches
            check_micro_batches(micro_batches)
        except (HostileRecordError, DecodeError):
            hostile.append(number)
            continue
        parts.append(
            (
                np.full(len(micro_batches), number, dtype=np.int64),
                np.array([each.index for each in micro_batches], dtype=np.int64),
                np.array([each.tokens for each in micro_batches], dtype=np.int64),
                np.array([each.sum_of_squares for each in micro_batches], dtype=np.float64),
            )
        )
    owners, indexes, tokens = (np.concatenate([part[place] for part in parts]) for place in range(3))
    squares = np.concatenate([part[3] for part in parts])
    order = np.argsort(owners, kind="stable")
    return owners[order], indexes[order], tokens[order], squares[order]


def _read_at_once(wire: Bytes, begins: Ints, ends: Ints) -> tuple[_Columns, Bools]:
    """The micro-batches, list after list, and which lists are as plain as protobuf writes them and can be meant."""
    most = int((ends - begins).sum()) // _LEAST_BYTES
    integers, squares = np.empty((3, most), dtype=np.int64), np.zeros(most)
    plain = np.empty(len(begins), dtype=np.bool_)
    count = _scan(wire, begins, ends, integers, squares, squares.view(np.uint64), plain)
    owners, indexes, tokens = integers[:, :count]
    return (owners, indexes, tokens, squares[:count]), plain


@compiled
def _scan(wire: Bytes, begins: Ints, ends: Ints, integers: Ints, squares: Floats, bits: Words, plain: Bools) -> int:
    """Fills the last four, ``bits`` being those of ``squares``; returns how many micro-batches there are."""
    count = 0
    for row in range(len(begins)):
        at, stop, before, sound = begins[row], ends[row], count, True
        while sound and at < stop:
            here, at = delimited(wire, at + 1, stop)  # whoever found the list looked at the tags
            integers[0, count], integers[1, count], integers[2, count], squares[count] = row, 0, 0, 0.0
            last, sound = 0, at != NOT_PLAIN
            while sound and here < at:
                tag = int(wire[here])
                field, kind = tag >> 3, tag & 7
                if field <= last:
                    sound = False
                elif kind == VARINT and field in (_INDEX, _TOKENS):
                    value, here = varint(wire, here + 1, at)
                    integers[field - _INDEX + 1, count] = value
                    sound = here != NOT_PLAIN and value <= LARGEST_INT32
                elif kind == DOUBLE and field == _SQUARES and here + 9 <= at:
                    bits[count] = word(wire, here + 1)
                    here += 9
                else:
                    sound = False
                last = field
            sound = sound and 0.0 <= squares[count] <= MAX_SQUARES  # NaN is neither
            count += 1
        plain[row] = sound
        if not sound:
            count = before
    return count
