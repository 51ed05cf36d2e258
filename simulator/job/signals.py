"""What a simulated job reports beside its times: loss, gradient norm, seconds of input, planned pauses."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Arrays ``[iterations, ranks]``; ``planned`` is ``[iterations]``.

    Attributes:
        losses: Mean loss as each rank knows it.
        gradient_norms: Global gradient norm as each rank knows it.
        data_seconds: Fetching and packing input; part of the iteration.
        planned: The iteration held an evaluation or a checkpoint, and says so.
    """

    losses: Floats
    gradient_norms: Floats
    data_seconds: Floats
    planned: NDArray[np.bool_]


def healthy_signals(rng: np.random.Generator, num_iterations: int, num_ranks: int) -> Signals:
    """A loss that falls as a power of the iteration, with noise; a norm with a heavier tail; input that is quick.

    Loss and norm are global: all ranks report the same number, up to the order of summation.
    """
    progress = np.arange(num_iterations) + 50.0
    loss = 1.7 + 9.0 * progress**-0.3 + 0.02 * rng.standard_normal(num_iterations)
    norm = (0.4 + 20.0 / progress) * np.exp(0.15 * rng.standard_t(5, num_iterations))
    rounding = 1.0 + 1e-7 * rng.standard_normal((2, num_iterations, num_ranks))
    return Signals(
        losses=loss[:, None] * rounding[0],
        gradient_norms=norm[:, None] * rounding[1],
        data_seconds=0.02 * np.exp(0.3 * rng.standard_normal((num_iterations, num_ranks))),
        planned=np.zeros(num_iterations, dtype=np.bool_),
    )
