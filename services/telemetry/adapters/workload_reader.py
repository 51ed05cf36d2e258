"""Lists of micro-batches, as they were cut out of samples, into arrays: short ones all at once."""

from collections.abc import Sequence

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from google.protobuf.message import DecodeError

from services.telemetry.adapters.wire_cursor import Wire, WireCursor
from services.telemetry.domain.sample_block import Bools, Floats, Ints, Workloads
from services.telemetry.domain.validate import (
    MAX_MICRO_BATCHES,
    MAX_SQUARES,
    HostileRecordError,
    check_micro_batches,
)

_FIELD = pb.Sample.DESCRIPTOR.fields_by_name["micro_batches"].number
_NUMBER = {field.name: field.number for field in pb.MicroBatch.DESCRIPTOR.fields}
# All short lists take one step for each place in the longest of them.
_SHORT_BYTES = 2048

_Columns = tuple[Ints, Ints, Ints, Floats]
"""List, index, tokens and sum of squares of each micro-batch."""


def read_workloads(raws: Sequence[bytes]) -> tuple[Workloads, list[int]]:
    """The lists, and the numbers of those that nobody can have meant, which are empty.

    Args:
        raws: Samples of nothing but their micro-batches.
    """
    short = np.fromiter(map(len, raws), dtype=np.int64, count=len(raws)) <= _SHORT_BYTES
    columns, plain = _read_at_once([raw if here else b"" for raw, here in zip(raws, short.tolist(), strict=True)])
    plain &= short
    hostile: list[int] = []
    if not plain.all():
        columns = _with_the_others(columns, raws, plain, hostile)
    owners, indexes, tokens, squares = columns
    sizes = np.bincount(owners, minlength=len(raws))
    return Workloads(sizes=sizes, indexes=indexes, tokens=tokens, sums_of_squares=squares), hostile


def _with_the_others(columns: _Columns, raws: Sequence[bytes], plain: Bools, hostile: list[int]) -> _Columns:
    """The plain lists of the columns, and the others one by one, in order; ``hostile`` gets those to be refused."""
    kept = plain[columns[0]]
    parts: list[_Columns] = [(columns[0][kept], columns[1][kept], columns[2][kept], columns[3][kept])]
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


def _read_at_once(raws: Sequence[bytes]) -> tuple[_Columns, Bools]:
    """The micro-batches, list after list, and which lists are as plain as protobuf writes them and can be meant."""
    wire = Wire(raws)
    outer = wire.cursor()
    owners, begins, ends = outer.items(_FIELD, most=MAX_MICRO_BATCHES)
    outer.end()
    inner = WireCursor(wire, begins, ends)
    indexes, tokens = inner.int32s(_NUMBER["index"]), inner.int32s(_NUMBER["tokens"])
    squares = inner.doubles(_NUMBER["sum_of_squares"])
    inner.end()
    plain = outer.plain.copy()
    plain[owners[~(inner.plain & (squares >= 0.0) & (squares <= MAX_SQUARES))]] = False  # NaN is neither
    return (owners, indexes, tokens, squares), plain
