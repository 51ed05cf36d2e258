"""Shows a made-up job to a detector, so that what is compiled is at hand before the first frame of a real one comes.

The first process of a machine compiles, and keeps it for those that follow (:mod:`evenkeel.numeric.compiled`); these
load it. Images are built with it: ``python -m evenkeel.services.detector.warm_up``.
"""

import time

import numpy as np

from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.detector.adapters.frame_codec import frame_from_proto
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.detector import JobDetector
from evenkeel.services.detector.domain.middle import middle_of
from evenkeel.services.detector.domain.noise import estimate, row_scales
from evenkeel.services.detector.domain.sequential_test import log_ratios
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_NUM_RANKS, _NUM_ITERATIONS = 8, 76
_SLOW_RANK, _SLOW_FROM = 5, 60
# In which one rank measured nothing.
_UNUSABLE_AT = (30, 70)
_TOKENS = (900, 1100, 1000, 1300)


def warm_up() -> float:
    """Finds the slow rank of a job of some dozens of iterations, which compiles or loads; the seconds that it took."""
    started, detector = time.perf_counter(), JobDetector("warm-up")
    for iteration in range(_NUM_ITERATIONS):
        detector.observe(frame_from_proto(detector.job_id, iteration, _frame(iteration)))
    run = pb.FrameRun(
        iterations=[0], closed_at_unix_seconds=[1.0], last_sample_at_unix_seconds=[1.0], columns=_frame(0).columns
    )
    message = pb.Observation(job_id=detector.job_id, run=run)
    decode_observations(ConsumedRecord(Partition("", -1), 0, 0.0, None, message.SerializeToString()))
    # Of links, whose residuals are of another precision, and of who may have recovered.
    window = np.linspace(-0.01, 0.01, 48)[None, :]
    row_scales(window, estimate(window, np.ones(1, dtype=np.bool_)))
    log_ratios(np.zeros(1), np.ones(1), 4.0)
    middle_of(np.zeros(1))  # most often a part of what else is compiled
    return time.perf_counter() - started


def _frame(iteration: int) -> pb.Frame:
    ranks = range(_NUM_RANKS)
    tokens = [count + 7 * ((iteration + place) % 11) for place, count in enumerate(_TOKENS)]
    # All a little apart from one another and from the iteration before, the same in every run.
    work = [sum(tokens[:2]), sum(tokens[2:])]
    seconds = [5e-5 * work[rank // 4] * (1.0 + 0.002 * ((7 * iteration + 3 * rank) % 13)) for rank in ranks]
    if iteration in _UNUSABLE_AT:
        seconds[0] = 0.0
    if iteration >= _SLOW_FROM:
        seconds[_SLOW_RANK] *= 1.6
    zeros = [0.0] * _NUM_RANKS
    columns = pb.FrameColumns(
        ranks=ranks,
        incarnations=[0] * _NUM_RANKS,
        names=["node", *(f"device-{rank}" for rank in ranks)],
        node_of=[0] * _NUM_RANKS,
        device_of=[1 + rank for rank in ranks],
        started_at_unix_seconds=[float(iteration)] * _NUM_RANKS,
        wall_seconds=[0.4] * _NUM_RANKS,
        forward_seconds=[each / 3 for each in seconds],
        backward_seconds=[each * 2 / 3 for each in seconds],
        optimizer_seconds=[0.01] * _NUM_RANKS,
        data_seconds=[0.001] * _NUM_RANKS,
        tensor_wait_seconds=zeros,
        pipeline_wait_seconds=[0.01] * _NUM_RANKS,
        gradient_wait_seconds=[0.01] * _NUM_RANKS,
        vote_wait_seconds=zeros,
        losses=[2.0 + 0.001 * rank for rank in ranks],
        has_loss=[True] * _NUM_RANKS,
        gradient_norms=[1.0] * _NUM_RANKS,
        has_gradient_norm=[True] * _NUM_RANKS,
        peak_memory_bytes=[0] * _NUM_RANKS,
        marks=[0] * _NUM_RANKS,
        replicas=[rank // 4 for rank in ranks],
        stages=[rank // 2 % 2 for rank in ranks],
        shards=[rank % 2 for rank in ranks],
        forward_flops_per_token=[1e9] * _NUM_RANKS,
        forward_flops_per_squared_length=[1e3] * _NUM_RANKS,
        backward_multiple=[2.0] * _NUM_RANKS,
        workload_of=[rank // 4 for rank in ranks],
        workload_sizes=[2, 2],
        micro_batch_indexes=range(4),
        micro_batch_tokens=tokens,
        micro_batch_sums_of_squares=[100.0 * each for each in tokens],
    )
    return pb.Frame(iteration=iteration, epoch=0, closed_at_unix_seconds=1.0 + iteration, columns=columns)


if __name__ == "__main__":
    print(f"ready after {warm_up():.1f} s")
