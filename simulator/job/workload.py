"""Micro-batches as packing makes them: document lengths from a real histogram, packed to a token budget."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@cache
def length_histogram() -> tuple[NDArray[np.int64], Floats]:
    """Lengths in tokens and their probabilities (SQuAD 1.1; source in ``simulator/data/README.md``)."""
    with files("evenkeel.simulator").joinpath("data/squad_1_1_histogram.csv").open() as lines:
        rows = [(int(row["length_tokens"]), float(row["count"])) for row in csv.DictReader(lines)]
    lengths = np.array([length for length, count in rows if count > 0])
    counts = np.array([count for _, count in rows if count > 0])
    return lengths, counts / counts.sum()


_BUCKETS = 1 << 16


@cache
def _guide() -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """The cumulative histogram, what each bucket of [0, 1) leads to, and the buckets that lead to several lengths."""
    cumulative = length_histogram()[1].cumsum()
    cumulative /= cumulative[-1]
    borders = np.searchsorted(cumulative, np.arange(_BUCKETS + 1) / _BUCKETS, side="right")
    return cumulative, borders[:-1], borders[:-1] != borders[1:]


def draw_lengths(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Document lengths in tokens; the very draws of ``rng.choice`` and the histogram, six times as fast."""
    cumulative, guide, several = _guide()
    uniform = rng.random(shape)
    buckets = (uniform * _BUCKETS).astype(np.int64)
    drawn = guide[buckets]
    unsure = several[buckets]
    drawn[unsure] = np.searchsorted(cumulative, uniform[unsure], side="right")
    return length_histogram()[0][drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The micro-batches of a run.

    Attributes:
        tokens: N of every micro-batch, shape ``[iterations, micro_batches]``.
        sum_of_squares: Sum of squared document lengths, same shape.
    """

    tokens: Floats
    sum_of_squares: Floats


def packed_workload(
    rng: np.random.Generator,
    *,
    num_iterations: int,
    num_micro_batches: int,
    token_budget: int,
    length_scale: float = 1.0,
    tail: float = 0.0,
) -> Workload:
    """Draws documents and packs each micro-batch to exactly ``token_budget`` tokens; the last document is cut.

    Args:
        rng: Source of randomness.
        num_iterations: Iterations.
        num_micro_batches: Micro-batches per iteration.
        token_budget: Tokens N of each micro-batch.
        length_scale: Lengths are multiplied by this.
        tail: Standard deviation of a log-normal factor on each length: 0 keeps the histogram, 1 gives a long tail as
            GitHub-like data has.
    """
    lengths, probabilities = length_histogram()
    squares = np.empty((num_iterations, num_micro_batches))
    mean_length = float(lengths @ probabilities) * length_scale
    num_drawn = int(token_budget / mean_length * 4) + 16
    for row in squares:
        drawn = draw_lengths(rng, (num_micro_batches, num_drawn)) * length_scale
        if tail > 0:
            drawn = drawn * rng.lognormal(-(tail**2) / 2, tail, drawn.shape)
        ends = np.minimum(np.cumsum(np.maximum(np.rint(drawn), 1), axis=1), token_budget)
        # What the drawn documents leave open is one more document.
        ends[:, -1] = token_budget
        kept = np.diff(ends, axis=1, prepend=0)
        row[:] = (kept**2).sum(axis=1)
    return Workload(tokens=np.full(squares.shape, float(token_budget)), sum_of_squares=squares)
