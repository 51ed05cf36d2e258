"""The entries of a frame message as arrays, whichever way the message carries them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.telemetry.v1 import telemetry_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRows:
    """One row an entry.

    Attributes:
        ranks: Rank.
        incarnations: Its incarnation.
        nodes: Node it ran on.
        devices: Device it ran on.
        epochs: Epoch of the sample.
        marks: Number of the sample's mark.
        seconds: Columns compute, other, wall, waiting for tensor, pipeline, gradient, vote; then input, in other.
        positions: Columns replica, stage, shard.
        costs: Columns forward flops per token and per squared length, passes, whether they are known, key of the share.
        workloads: Columns micro-batches, tokens, sum of squares.
        micro_batches: One row each time that somebody names one: index, tokens, sum of squares.
        losses: NaN where none.
        has_loss: Whether one was reported.
        gradient_norms: NaN where none.
        has_gradient_norm: Whether one was reported.
        started_at_unix_seconds: Start of the iteration by the rank's clock.
        traffic: Operations with other ranks, empty where the rank measures none; no items where nobody does.
    """

    ranks: Ints
    incarnations: Ints
    nodes: Sequence[str]
    devices: Sequence[str]
    epochs: Ints
    marks: Ints
    seconds: Floats
    positions: Ints
    costs: Floats
    workloads: Floats
    micro_batches: Floats
    losses: Floats
    has_loss: Bools
    gradient_norms: Floats
    has_gradient_norm: Bools
    started_at_unix_seconds: Floats
    traffic: Sequence[pb.Traffic]


def costs_of(flops: Floats, stages: npt.NDArray[Any]) -> Floats:
    """``FrameRows.costs`` of columns forward per token, forward per squared length, backward multiple."""
    per_token, per_square, multiple = flops.T
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond numbers is thrown out where it is used
        passes = 1.0 + multiple
        known = (per_token > 0) | (per_square > 0)
        keys = np.where(known, passes * (per_token + math.pi * per_square), -1.0 - stages)
    return np.column_stack([per_token, per_square, passes, known, keys])


def joined(one: FrameRows, other: FrameRows) -> FrameRows:
    """The rows of both, one after the other."""
    one, other = (
        rows if rows.traffic else replace(rows, traffic=[pb.Traffic()] * len(rows.ranks)) for rows in (one, other)
    )
    values: dict[str, Any] = {}
    for field in fields(FrameRows):
        parts = getattr(one, field.name), getattr(other, field.name)
        values[field.name] = [*parts[0], *parts[1]] if isinstance(parts[0], Sequence) else np.concatenate(parts)
    return FrameRows(**values)


def picked(rows: FrameRows, order: Ints) -> FrameRows:
    """The rows of these numbers, in their order."""
    values: dict[str, Any] = {}
    for field in fields(FrameRows):
        value = getattr(rows, field.name)
        if isinstance(value, Sequence):
            values[field.name] = [value[index] for index in order.tolist()] if value else []
        elif field.name == "micro_batches":
            values[field.name] = value
        else:
            values[field.name] = value[order]
    return FrameRows(**values)
