"""Entries of a frame, one message each: as simulators, older services and frames of few ranks write them."""

import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from evenkeel.numeric.arrays import Floats
from evenkeel.services.detector.adapters.frame_rows import FrameRows, costs_of
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


def rows_of_entries(entries: Iterable[pb.FrameEntry]) -> FrameRows:
    """The entries that are messages, in their order."""
    entries = list(entries)
    samples = [entry.sample for entry in entries]
    numbers = np.array([_numbers(sample) for sample in samples], dtype=np.float64).reshape(len(samples), 20)
    return FrameRows(
        ranks=np.array([entry.rank for entry in entries], dtype=np.int64),
        incarnations=np.array([entry.incarnation for entry in entries], dtype=np.int64),
        nodes=[sys.intern(entry.node) for entry in entries],
        devices=[sys.intern(entry.device) for entry in entries],
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        marks=np.array([sample.mark for sample in samples], dtype=np.int64),
        seconds=np.column_stack([numbers[:, :7], [sample.compute.data for sample in samples]]).reshape(-1, 8),
        positions=numbers[:, 7:10].astype(np.int64),
        costs=costs_of(numbers[:, 10:13], numbers[:, 8]),
        workloads=np.ascontiguousarray(numbers[:, 13:16]),
        micro_batches=_named_by(samples),
        losses=numbers[:, 16],
        has_loss=numbers[:, 17] > 0,
        gradient_norms=numbers[:, 18],
        has_gradient_norm=numbers[:, 19] > 0,
        started_at_unix_seconds=np.array([sample.started_at_unix_seconds for sample in samples], dtype=np.float64),
        traffic=[sample.traffic for sample in samples],
    )


def _numbers(sample: pb.Sample) -> Sequence[float]:
    compute, waiting, position = sample.compute, sample.waiting, sample.position
    has_loss, has_norm = sample.HasField("loss"), sample.HasField("gradient_norm")
    tokens = squares = 0.0
    for micro_batch in sample.micro_batches:
        tokens += micro_batch.tokens
        squares += micro_batch.sum_of_squares
    return (
        compute.forward + compute.backward,
        compute.optimizer + compute.data,
        sample.wall_seconds,
        waiting.tensor,
        waiting.pipeline,
        waiting.gradient,
        waiting.vote,
        position.replica,
        position.stage,
        position.shard,
        position.forward_flops_per_token,
        position.forward_flops_per_squared_length,
        position.backward_multiple,
        len(sample.micro_batches),
        tokens,
        squares,
        sample.loss if has_loss else math.nan,
        has_loss,
        sample.gradient_norm if has_norm else math.nan,
        has_norm,
    )


def _named_by(samples: Iterable[pb.Sample]) -> Floats:
    named = [(one.index, one.tokens, one.sum_of_squares) for sample in samples for one in sample.micro_batches]
    return np.array(named, dtype=np.float64).reshape(-1, 3)
