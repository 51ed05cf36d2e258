"""False accusations in healthy jobs of few ranks: ``python -m benchmarks.detection.aspects.small_jobs``.

The scan of devices alone, fed with noise that lingers, comes in jumps or has outliers: where there are hardly any
peers, one device's noise is much of what is seen of another's. A job is 5,000 iterations; the budget is one in 100,000.
"""

import argparse
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from evenkeel.services.detector.domain.scan.devices import DeviceScan
from evenkeel.services.detector.domain.scan.residual.clocks import Clock, smallest_scales
from evenkeel.services.detector.domain.scan.speed_change import SpeedChange

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

ITERATIONS_PER_FALSE_ALARM = 100_000.0
ITERATIONS = 5_000
SIGMA = 0.03

SHAPES: dict[str, tuple[float, ...]] = {
    "1": (1.0,),
    "2": (1.0, 1.0),
    "3": (1.0, 1.0, 1.0),
    "4": (1.0, 1.0, 1.0, 1.0),
    "2x2": (1.0, 1.0, 2.0, 2.0),
}
"""What share of the model each rank holds: equal ones are peers."""


def lingering(correlation: float, *, freedom: float = np.inf) -> Draw:
    """Noise of which a share is left in the next iteration; what is new is Student-t."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        new = rng.normal(size=shape)
        if np.isfinite(freedom):
            new = rng.standard_t(freedom, shape) * np.sqrt((freedom - 2) / freedom)
        new *= SIGMA * np.sqrt(1 - correlation**2)
        return np.asarray(lfilter([1.0], [1.0, -correlation], new, axis=0))

    return draw


def contended(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Processes that share cores: noise that lingers, and outliers of 5 to 20 % in 4 % of the iterations."""
    found: Floats = lingering(0.8)(rng, shape) + (rng.random(shape) < 0.04) * rng.uniform(0.05, 0.2, shape)
    return found


NOISES: dict[str, Draw] = {
    "white": lingering(0.0),
    "t": lingering(0.0, freedom=3.0),
    "0.8": lingering(0.8),
    "0.95": lingering(0.95),
    "0.97": lingering(0.97),
    "jumps 0.8": lingering(0.8, freedom=3.0),
    "jumps 0.9": lingering(0.9, freedom=3.0),
    "contended": contended,
}


def num_accused(noise: Floats, work_keys: tuple[float, ...]) -> int:
    """Verdicts that call a device slow.

    Args:
        noise: Log of observed over expected seconds, one row an iteration, one column a rank.
        work_keys: Of each rank.
    """
    return sum(not change.recovered for change in changes_of(noise, work_keys))


def changes_of(log_ratios: Floats, work_keys: tuple[float, ...]) -> Iterator[SpeedChange]:
    """Whose throughput changes in such a job; arguments as for :func:`num_accused`."""
    scan, clocks, count = DeviceScan(ITERATIONS_PER_FALSE_ALARM), (Clock.WORK,), len(work_keys)
    scan.allot(clocks, count, smallest_scales(clocks, 1.0))
    scan.take_work(np.arange(count), np.array(work_keys))
    for iteration, row in enumerate(log_ratios):
        yield from scan.observe(iteration, row[None, :], 1.0)


def main() -> None:
    """Parses the arguments and prints a line a cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--jobs", type=int, default=20, help="healthy jobs of 5,000 iterations a cell")
    parser.add_argument("--seed", type=int, default=0, help="number of the first job")
    arguments = parser.parse_args()
    for noise in arguments.noises:
        for shape in arguments.shapes:
            found = 0
            for number in range(arguments.seed, arguments.seed + arguments.jobs):
                rng = np.random.default_rng((number, zlib.crc32(f"{noise} {shape}".encode())))
                found += num_accused(NOISES[noise](rng, (ITERATIONS, len(SHAPES[shape]))), SHAPES[shape])
            print(f"{noise}, {shape}: {found} accused in {arguments.jobs * ITERATIONS} iterations", flush=True)


if __name__ == "__main__":
    main()
