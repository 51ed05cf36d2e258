"""Records out of their bytes, a batch in one compiled step: who sent each, and where its samples and reports are."""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Bools, Bytes, Ints
from evenkeel.numeric.compiled import compiled
from evenkeel.services.telemetry.adapters.wire_scan import (
    DELIMITED,
    LARGEST_INT32,
    NOT_PLAIN,
    VARINT,
    delimited,
    varint,
)
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_FIELDS = pb.Record.DESCRIPTOR.fields_by_name
_JOB, _NODE, _DEVICE = (_FIELDS[name].number for name in ("job_id", "node", "device"))
_RANK, _INCARNATION = _FIELDS["rank"].number, _FIELDS["incarnation"].number
_SEQUENCE, _DROPPED = _FIELDS["sequence"].number, _FIELDS["num_dropped"].number
_SAMPLES, _PROGRESS = _FIELDS["samples"].number, _FIELDS["progress"].number
_TOLD_AT_FIRST = 4


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """What lies in some records; of one that is not plain no number means anything.

    Attributes:
        heads: One row a record: rank, incarnation, number, samples dropped so far, begin and end of its job id, begin
            and end of its node and device (tags included), number of samples, number of reports.
        samples: One row a sample: its record, its begin and its end.
        reports: The same of progress reports.
        plain: Which records are.
    """

    heads: Ints
    samples: Ints
    reports: Ints
    plain: Bools


def scan_records(wire: Bytes, begins: Ints, ends: Ints) -> ScannedRecords:
    """Looks through records.

    Args:
        wire: Where they are.
        begins: First byte of each.
        ends: Behind its last byte.
    """
    size, begins, ends = len(begins), np.ascontiguousarray(begins), np.ascontiguousarray(ends)
    heads, plain = np.zeros((size, 10), dtype=np.int64), np.empty(size, dtype=np.bool_)
    most = _TOLD_AT_FIRST * size + 64
    while True:
        samples, reports = np.empty((most, 3), dtype=np.int64), np.empty((most, 3), dtype=np.int64)
        num_samples, num_reports = _scan(wire, begins, ends, heads, samples, reports, plain)
        if max(num_samples, num_reports) <= most:
            return ScannedRecords(heads, samples[:num_samples], reports[:num_reports], plain)
        most = max(num_samples, num_reports)


@compiled
def _scan(
    wire: Bytes, begins: Ints, ends: Ints, heads: Ints, samples: Ints, reports: Ints, plain: Bools
) -> tuple[int, int]:
    """Fills the last four; what does not fit into ``samples`` and ``reports`` is only counted, in what it returns."""
    num_samples = num_reports = 0
    for row in range(len(begins)):
        at, stop = begins[row], ends[row]
        heads[row, :] = 0
        heads[row, 4:8] = at
        samples_before, reports_before = num_samples, num_reports
        last, sound = 0, True
        while sound and at < stop:
            tag = int(wire[at])
            field, kind = tag >> 3, tag & 7
            if field < last or (field == last and field != _SAMPLES and field != _PROGRESS):
                sound = False
            elif kind == VARINT and _RANK <= field <= _DROPPED:
                value, at = varint(wire, at + 1, stop)
                heads[row, field - _RANK] = value
                sound = at != NOT_PLAIN and (value <= LARGEST_INT32 or field > _INCARNATION)
            elif kind == DELIMITED and (field == _JOB or _NODE <= field <= _PROGRESS):
                tag_at = at
                begin, at = delimited(wire, at + 1, stop)
                sound = at != NOT_PLAIN
                if field == _JOB:
                    heads[row, 4], heads[row, 5] = begin, at
                elif field <= _DEVICE:
                    if last < _NODE:
                        heads[row, 6] = tag_at
                    heads[row, 7] = at
                elif field == _SAMPLES:
                    if num_samples < len(samples):
                        samples[num_samples, 0], samples[num_samples, 1], samples[num_samples, 2] = row, begin, at
                    num_samples += 1
                else:
                    if num_reports < len(reports):
                        reports[num_reports, 0], reports[num_reports, 1], reports[num_reports, 2] = row, begin, at
                    num_reports += 1
            else:
                sound = False
            last = field
        plain[row] = sound
        if not sound:
            num_samples, num_reports = samples_before, reports_before
            heads[row, 4:8] = begins[row]
        heads[row, 8], heads[row, 9] = num_samples - samples_before, num_reports - reports_before
    return num_samples, num_reports
