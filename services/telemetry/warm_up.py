"""Has all that is compiled ready before the first record comes.

The first process of a machine compiles, and keeps it for those that follow (:mod:`evenkeel.numeric.compiled`); these
load it. Images are built with it: ``python -m evenkeel.services.telemetry.warm_up``.
"""

import time

import numpy as np

from evenkeel.contracts.headers import record_headers
from evenkeel.contracts.topics import RECORDS
from evenkeel.services.common.kafka import ConsumedRecord, FetchedRecords, Partition
from evenkeel.services.telemetry.adapters.observation_codec import observation_record, observation_records
from evenkeel.services.telemetry.adapters.picked_run import PickedRun
from evenkeel.services.telemetry.adapters.record_batch import RecordBatchDecoder
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.rollups import RollupAggregator
from evenkeel.services.telemetry.domain.sequences import RecordSequences
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_NOWHERE = Partition(RECORDS.name, -1)
_RANKS = range(4)


def warm_up() -> float:
    """Takes a few made-up records through all that the service does with records; the seconds that it took.

    Blocks for so long; a second call takes none.
    """
    began_seconds = time.perf_counter()
    headers = record_headers(RECORDS, "evenkeel/telemetry")
    records = [
        ConsumedRecord(_NOWHERE, offset, 0.0, b"job", record.SerializeToString(), headers)
        for offset, record in enumerate(
            pb.Record(
                job_id="job",
                rank=rank,
                samples=[pb.Sample(iteration=iteration, wall_seconds=1.0, micro_batches=[pb.MicroBatch(tokens=1)])],
                progress=[pb.Progress(iteration=iteration, operation_count=1)],
            )
            for iteration in range(4)
            for rank in _RANKS
        )
    ]
    fetched = FetchedRecords.of(_NOWHERE, records)
    assert [*fetched] == records
    arrived = RecordBatchDecoder().decode(fetched)
    stream, sequences, rollups = JobStream("job"), RecordSequences(), RollupAggregator("job")
    for run in arrived.runs:
        sequences.add(run.numbers)
        numbered = stream.records(
            run.numbers[:, 0:2], run.num_samples, run.progress, arrived.block, run.first_row, run.stop_row, 1.0
        )
        observation_records("job", numbered, input_offset=0)
        rollups.add(arrived.block, np.arange(run.first_row, run.stop_row), 1.0)
        for each in numbered:
            observation_record("job", each, input_offset=0)
    PickedRun(arrived.block, np.arange(len(records)).reshape(-1, len(_RANKS)))
    return time.perf_counter() - began_seconds


if __name__ == "__main__":
    print(f"ready after {warm_up():.1f} s")
