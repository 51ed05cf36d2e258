"""A trace's frames as the detector holds them, made without the messages in between.

The same numbers as decoding :meth:`Trace.observations` gives (a test compares them), at a tenth of the cost: so a
cell of 256 ranks can have hundreds of traces.
"""

import math
from collections.abc import Iterator

import numpy as np

from benchmarks.detection.traces.traces import Trace
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.simulator.job.hardware import shard_work

STARTED_AT_UNIX_SECONDS = 1_700_000_000.0
DEVICES_PER_NODE = 8


def frames_of(trace: Trace) -> Iterator[FrameObservation]:
    """One frame per iteration, in order."""
    times, layout = trace.times, trace.layout
    count = len(times.ranks)
    positions = dict(layout.positions())
    places = [positions[rank] for rank in times.ranks]
    works = [shard_work(trace.model, layout, at.replica, at.stage, at.shard) for at in places]
    passes = np.array([1.0 + work.backward_multiple for work in works])
    per_token = np.array([work.flops_per_token for work in works])
    per_square = np.array([work.flops_per_squared_length for work in works])
    replicas = np.array([at.replica for at in places])
    tokens, squares = _sums_by_replica(trace)
    tokens, squares = tokens[:, replicas], squares[:, replicas]
    quotas = np.array([len(layout.micro_batches_of(at.replica)) for at in places])
    ends = STARTED_AT_UNIX_SECONDS + np.cumsum(times.wall.max(axis=1))
    waits = np.stack([times.waiting_tensor, times.waiting_pipeline, times.waiting_gradient, times.waiting_vote], axis=2)
    nothing = np.full(count, np.nan)
    fixed = {
        "ranks": np.array(times.ranks),
        "incarnations": np.zeros(count, dtype=np.int64),
        "nodes": tuple(f"node-{rank // DEVICES_PER_NODE}" for rank in times.ranks),
        "devices": tuple(f"gpu-{rank % DEVICES_PER_NODE}" for rank in times.ranks),
        "has_flops": np.ones(count, dtype=np.bool_),
        "num_micro_batches": quotas,
        "work_keys": passes * (per_token + math.pi * per_square),
        "replicas": replicas,
        "stages": np.array([at.stage for at in places]),
        "shards": np.array([at.shard for at in places]),
    }
    signals = trace.signals
    for i in range(trace.num_iterations):
        losses = nothing if signals is None else signals.losses[i]
        norms = nothing if signals is None else signals.gradient_norms[i]
        data = np.zeros(count) if signals is None else signals.data_seconds[i]
        yield FrameObservation(
            job_id=trace.name,
            sequence=i,
            iteration=i,
            epoch=0,
            closed_at_unix_seconds=float(ends[i]),
            planned=np.zeros(count, dtype=np.bool_) if signals is None else np.full(count, bool(signals.planned[i])),
            compute_seconds=times.forward[i] + times.backward[i],
            other_seconds=trace.hardware.optimizer_seconds + data,
            data_seconds=data,
            wall_seconds=times.wall[i],
            wait_seconds=waits[i],
            token_flops=per_token * tokens[i] * passes,
            square_flops=per_square * squares[i] * passes,
            tokens=tokens[i],
            sums_of_squares=squares[i],
            losses=losses,
            has_loss=np.full(count, signals is not None),
            gradient_norms=norms,
            has_gradient_norm=np.full(count, signals is not None),
            **fixed,  # type: ignore[arg-type]
        )


def _sums_by_replica(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and sums of squares of each replica's micro-batches, ``[iterations, replicas]``."""
    ranges = [trace.layout.micro_batches_of(d) for d in range(len(trace.layout.replicas))]
    tokens = [trace.workload.tokens[:, each.start : each.stop].sum(axis=1) for each in ranges]
    squares = [trace.workload.sum_of_squares[:, each.start : each.stop].sum(axis=1) for each in ranges]
    return np.stack(tokens, axis=1), np.stack(squares, axis=1)
