"""Many samples as arrays, one row each: what a batch of records brought, whichever jobs and ranks they are of."""

from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.telemetry.domain.observed import ArrivedSample
from evenkeel.services.telemetry.domain.validate import (
    MAX_BACKWARD_MULTIPLE,
    MAX_COUNT,
    MAX_FLOPS,
    MAX_INT32,
    MAX_SECONDS,
    MAX_UNIX_SECONDS,
)

COLUMNS = (
    "started_at_unix_seconds",
    "wall_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "data_seconds",
    "tensor_wait_seconds",
    "pipeline_wait_seconds",
    "gradient_wait_seconds",
    "vote_wait_seconds",
    "replicas",
    "stages",
    "shards",
    "forward_flops_per_token",
    "forward_flops_per_squared_length",
    "backward_multiple",
    "peak_memory_bytes",
    "marks",
    "losses",
    "gradient_norms",
)
"""Columns of ``SampleBlock.numbers``; named as in the contract's ``FrameColumns``."""

SECONDS = slice(2, 10)
"""Columns of device-busy and waiting seconds."""

SEAT = slice(10, 16)
"""Columns of the share of the model that a rank computes with."""

# A mark, a loss and a norm may be anything. The rules are those of `check_sample`.
_CHECKED = slice(0, 17)
_HIGHEST = np.array(
    [MAX_UNIX_SECONDS, *[MAX_SECONDS] * 9, *[MAX_INT32] * 3, MAX_FLOPS, MAX_FLOPS, MAX_BACKWARD_MULTIPLE, MAX_COUNT]
)


class Names(list[str]):
    """Names that blocks share, only ever added to; equal to nothing but themselves."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment] # a list's is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workloads:
    """Lists of micro-batches, one after the other; ranks of one replica share theirs.

    Attributes:
        sizes: Micro-batches of each list.
        indexes: Index of each micro-batch.
        tokens: Its tokens.
        sums_of_squares: Its sum of squared lengths.
    """

    sizes: Ints
    indexes: Ints
    tokens: Ints
    sums_of_squares: Floats

    def work(self) -> Floats:
        """Columns tokens and sum of squares, one row a list."""
        count, owners = len(self.sizes), np.repeat(np.arange(len(self.sizes)), self.sizes)
        sums = [np.bincount(owners, each, minlength=count) for each in (self.tokens, self.sums_of_squares)]
        return np.column_stack(sums).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBlock:
    """Samples in the order in which they came.

    Attributes:
        ranks: Rank.
        incarnations: Which process of the rank.
        epochs: Epoch of the layout.
        iterations: Which iteration.
        offsets: Offset of the record that brought it.
        node_of: Which of the ``names`` is the node that it ran on.
        device_of: Which of them is the device of the node.
        names: Nodes and devices; other blocks may share them, so there may be more than these samples have.
        numbers: One column each of ``COLUMNS``; 0 where a loss or norm was not reported.
        has_loss: Whether a loss was reported.
        has_gradient_norm: Whether a norm was reported.
        workload_of: Which of the ``workloads``.
        workloads: Lists of micro-batches, each once.
        work: Columns tokens and sum of squares, one row a list of micro-batches.
        traffic: Serialised operations with other ranks, empty where there are none; no items where nobody has any.
    """

    ranks: Ints
    incarnations: Ints
    epochs: Ints
    iterations: Ints
    offsets: Ints
    node_of: Ints
    device_of: Ints
    names: Names
    numbers: Floats
    has_loss: Bools
    has_gradient_norm: Bools
    workload_of: Ints
    workloads: Workloads
    work: Floats
    traffic: list[bytes]

    def __len__(self) -> int:
        return len(self.ranks)

    def samples(self, first: int, stop: int) -> list[ArrivedSample]:
        """Some consecutive rows, each as a value of its own."""
        rows = slice(first, stop)
        name = self.names.__getitem__
        columns = zip(
            self.ranks[rows].tolist(),
            self.incarnations[rows].tolist(),
            map(name, self.node_of[rows].tolist()),
            map(name, self.device_of[rows].tolist()),
            self.epochs[rows].tolist(),
            self.iterations[rows].tolist(),
            self.numbers[rows, 1].tolist(),
            self.offsets[rows].tolist(),
            map(SampleRow, repeat(self), range(first, stop)),
            strict=False,
        )
        return list(map(ArrivedSample._make, columns))

    def credible(self) -> Bools:
        """False for the rows whose numbers nobody can have measured; the rules are those of ``check_sample``."""
        numbers = self.numbers[:, _CHECKED]
        within = np.logical_and.reduce((numbers >= 0.0) & (numbers <= _HIGHEST), axis=1)  # NaN is within nothing
        for counts in (self.epochs, self.iterations):
            within &= (counts >= 0) & (counts <= MAX_COUNT)
        credible: Bools = within
        return credible


class SampleRow(NamedTuple):
    """Where in a block a sample is: what an ``ArrivedSample`` carries."""

    block: SampleBlock
    row: int
