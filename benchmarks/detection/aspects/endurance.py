"""A million updates of the river estimator: ``python -m benchmarks.detection.aspects.endurance``.

Features drift over nine orders of magnitude, stop showing for long stretches, and copy one another, which is what makes
recursive estimators go non-finite. Prints a line every tenth of the way and ends non-zero when a prediction is not
finite, or the last one is off.
"""

import argparse
import math
import sys

import numpy as np

from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares

_PRICE, _DEARER = 2e-12, 3e-12
_LARGEST_ERROR = 0.02


def main() -> None:
    """Runs the updates and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = ForgettingLeastSquares()
    rng = np.random.default_rng(arguments.seed)
    report_every = max(arguments.updates // 10, 1)
    worst = 0.0
    for step in range(arguments.updates):
        x = _features(rng, step)
        seconds = (_PRICE * x["flops"] + _DEARER * x["squares"]) * math.exp(0.02 * rng.standard_t(3))
        if step % 50 == 49:
            predicted = model.predict_one(x)
            if not math.isfinite(predicted):
                sys.exit(f"not finite after {step} updates: {predicted}")
            truth = _PRICE * x["flops"] + _DEARER * x["squares"]
            worst = max(worst, abs(predicted / truth - 1)) if step > arguments.updates // 100 else 0.0
        model.learn_one(x, seconds)
        if (step + 1) % report_every == 0:
            print(f"{step + 1:>9} updates: worst error {worst:.4f}")
    x = {"flops": 1e12, "squares": 2e11, "copy of flops": 1e12}
    error = abs(model.predict_one(x) / (_PRICE * x["flops"] + _DEARER * x["squares"]) - 1)
    if not error <= _LARGEST_ERROR:
        sys.exit(f"the last prediction is off by {error:.4f}, more than {_LARGEST_ERROR}")
    print(f"finite after {arguments.updates} updates; last prediction off by {error:.5f}")


def _features(rng: np.random.Generator, step: int) -> dict[str, float]:
    """A micro-batch: constant for long stretches, then varied; its size wanders by a factor of a thousand."""
    size = 10.0 ** (1.5 * math.sin(step / 50_000))
    varied = rng.uniform(1, 2) if step % 20_000 < 5_000 else 1.0
    squares = 2e11 * size * (rng.exponential(1.0) if step % 30_000 < 20_000 else 0.0)
    return {"flops": 1e12 * size * varied, "squares": squares, "copy of flops": 1e12 * size * varied}


if __name__ == "__main__":
    main()
