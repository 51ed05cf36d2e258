"""Noise as real clusters have it: resampled from published step times, drift, tails and pauses included."""

import csv
import gzip
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SERIES_FILES = ("steps_gpt3.csv.gz", "steps_llama31_405b.csv.gz")


@cache
def real_series() -> tuple[Floats, ...]:
    """Step time over the run's median, one array a run (source in ``simulator/data/README.md``)."""
    runs: dict[tuple[str, str], list[float]] = {}
    for name in SERIES_FILES:
        with files("evenkeel.simulator").joinpath(f"data/{name}").open("rb") as raw, gzip.open(raw, "rt") as lines:
            for row in csv.DictReader(lines):
                if row["step_s"]:
                    runs.setdefault((name, row["run"]), []).append(float(row["step_s"]))
    series = [np.array(values) for values in runs.values() if len(values) >= 100]
    return tuple(values / np.median(values) for values in series)


def resampled_factors(rng: np.random.Generator, num_iterations: int, *, block: int = 50) -> Floats:
    """Factors around 1 for the iterations of one simulated run, ``[iterations]``.

    A block bootstrap of one randomly chosen real run: blocks keep its drift and the neighbourhood of its outliers.
    """
    series = real_series()[rng.integers(len(real_series()))]
    pieces: list[Floats] = []
    while sum(map(len, pieces)) < num_iterations:
        start = int(rng.integers(max(1, len(series) - block)))
        pieces.append(series[start : start + block])
    return np.concatenate(pieces)[:num_iterations]


def rank_noise(rng: np.random.Generator, shape: tuple[int, ...], *, sigma: float, tail: float = 4.0) -> Floats:
    """Independent factors around 1 with Student-t tails (``tail`` degrees of freedom) and robust width ``sigma``."""
    return np.maximum(0.2, 1.0 + sigma * rng.standard_t(tail, shape))
