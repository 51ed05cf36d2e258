"""Shows a made-up job to a detector, so that what is compiled is at hand before the first frame of a real one comes.

The first process of a machine compiles, and keeps it for those that follow (:mod:`evenkeel.numeric.compiled`); these
load it. Images are built with it: ``python -m evenkeel.services.detector.warm_up``.
"""

import time

import numpy as np

from evenkeel.contracts.columns import HAS_FLOPS, HAS_INPUT, HAS_LOSS, HAS_NORM
from evenkeel.contracts.frames import Frames, frames_of, members_of, write_frames
from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.detector.adapters.frame_reader import observations_of
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.services.detector.domain.memory.middle import middle_of
from evenkeel.telemetry.v2 import frames_pb2 as pb

_NUM_RANKS, _NUM_ITERATIONS = 8, 76
_SLOW_RANK, _SLOW_FROM = 5, 60
# In which one rank measured nothing.
_UNUSABLE_AT = (30, 70)
_TOKENS = (900, 1100, 1000, 1300)


def warm_up() -> float:
    """Finds the slow rank of a job of some dozens of iterations, which compiles or loads; the seconds that it took."""
    started, detector = time.perf_counter(), JobDetector("warm-up")
    for iteration in range(_NUM_ITERATIONS):
        for frame in observations_of(detector.job_id, iteration, _frame(iteration)):
            detector.observe(frame)
    message = pb.Observation(job_id=detector.job_id)
    write_frames(message.frames, _frame(0))
    decode_observations(ConsumedRecord(Partition("", -1), 0, 0.0, None, message.SerializeToString()))
    middle_of(np.zeros(1))  # most often a part of what else is compiled
    return time.perf_counter() - started


def _frame(iteration: int) -> Frames:
    ranks = np.arange(_NUM_RANKS)
    tokens = [count + 7 * ((iteration + place) % 11) for place, count in enumerate(_TOKENS)]
    # All a little apart from one another and from the iteration before, the same in every run.
    work = np.repeat([sum(tokens[:2]), sum(tokens[2:])], _NUM_RANKS // 2)
    seconds = 5e-5 * work * (1.0 + 0.002 * ((7 * iteration + 3 * ranks) % 13))
    if iteration in _UNUSABLE_AT:
        seconds[0] = 0.0
    if iteration >= _SLOW_FROM:
        seconds[_SLOW_RANK] *= 1.6
    members = members_of(
        range(_NUM_RANKS),
        nodes=["node"] * _NUM_RANKS,
        devices=[f"device-{rank}" for rank in range(_NUM_RANKS)],
        replica=ranks // 4,
        stage=ranks // 2 % 2,
        shard=ranks % 2,
        forward_flops_per_token=[1e9] * _NUM_RANKS,
        forward_flops_per_squared_length=[1e3] * _NUM_RANKS,
        backward_multiple=[2.0] * _NUM_RANKS,
    )
    return frames_of(
        members,
        [iteration],
        closed_at_unix_seconds=[1.0 + iteration],
        flags=HAS_LOSS | HAS_NORM | HAS_FLOPS | HAS_INPUT,
        started_at_unix_seconds=float(iteration),
        wall_seconds=0.4,
        forward_seconds=seconds / 3,
        backward_seconds=seconds * 2 / 3,
        optimizer_seconds=0.01,
        input_seconds=0.001,
        wait_pipeline_seconds=0.01,
        wait_gradient_seconds=0.01,
        loss=2.0 + 0.001 * ranks,
        gradient_norm=1.0,
        tokens=work,
        sum_of_squares=100.0 * work,
        num_micro_batches=2,
        num_listed=2,
        listed_index=np.repeat([[0, 1], [2, 3]], _NUM_RANKS // 2, axis=0).ravel(),
        listed_tokens=np.repeat([tokens[:2], tokens[2:]], _NUM_RANKS // 2, axis=0).ravel(),
        listed_squares=100.0 * np.repeat([tokens[:2], tokens[2:]], _NUM_RANKS // 2, axis=0).ravel(),
        listed_kept=np.zeros(2 * _NUM_RANKS),
    )


if __name__ == "__main__":
    print(f"ready after {warm_up():.1f} s")
