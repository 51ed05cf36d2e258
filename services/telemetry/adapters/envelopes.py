"""Headers of records, all of a batch looked at in one compiled step."""

import numpy as np

from evenkeel.numeric.arrays import Bools, Bytes, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.common.kafka import FetchedRecords
from evenkeel.services.common.kafka.fetched_records import HEADERS, VALUE
from evenkeel.services.common.kafka.record_batches import read_varint
from evenkeel.services.telemetry.adapters.record_decoder import EXPECTED_HEADERS
from evenkeel.services.telemetry.adapters.wire_scan import same_bytes
from evenkeel.services.telemetry.domain.validate import MAX_RECORD_BYTES

_PARTS = [part for name, content in EXPECTED_HEADERS.items() for part in (name.encode(), content)]
_EXPECTED = np.frombuffer(b"".join(_PARTS), dtype=np.uint8)
_BOUNDS = np.cumsum([0, *map(len, _PARTS)])


def are_our_envelopes(records: FetchedRecords) -> Bools:
    """Which records have a value, and no header that says that it is something else: each of them would pass.

    False proves nothing: :func:`~evenkeel.services.telemetry.adapters.record_decoder.check_envelope` looks at one.
    """
    passed = np.empty(len(records), dtype=np.bool_)
    _scan(records.wire, np.ascontiguousarray(records.places), _EXPECTED, _BOUNDS, passed)
    return passed


@compiled
def _scan(wire: Bytes, places: Ints, expected: Bytes, bounds: Ints, passed: Bools) -> None:
    """Fills ``passed``.

    Args:
        wire: Where the records are.
        places: One row a record, as for ``FetchedRecords``; lengths were looked at when they were fetched.
        expected: Names and contents of the headers that matter, by turns.
        bounds: Where each of those begins, and the last one ends.
        passed: To be filled.
    """
    for row in range(len(places)):
        value, at, stop = places[row, VALUE], places[row, HEADERS], places[row, HEADERS + 1]
        sound = value >= 0 and places[row, VALUE + 1] - value <= MAX_RECORD_BYTES
        count, at = read_varint(wire, at, stop)
        for _ in range(count):
            size, name = read_varint(wire, at, stop)
            length, content = read_varint(wire, name + size, stop)
            length = max(length, 0)
            for part in range(0, len(bounds) - 1, 2):
                begin, middle, end = bounds[part], bounds[part + 1], bounds[part + 2]
                if size == middle - begin and same_bytes(wire, name, expected, begin, size):
                    same = length == end - middle and same_bytes(wire, content, expected, middle, length)
                    sound = sound and same
            at = content + length
        passed[row] = sound
