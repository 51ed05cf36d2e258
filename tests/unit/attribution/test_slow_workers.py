"""Who is slow among workers whose micro-batches differ by their sequences."""

import numpy as np
import pytest

from evenkeel.attribution import Operations
from evenkeel.attribution.causes.slow_workers import slow_workers


def computed(
    *, num_dp: int, num_stages: int, slow: dict[tuple[int, int], float], spread: float, seed: int, noise: float = 0.02
) -> Operations:
    """Forwards of three steps of eight micro-batches, each as long as its sequences on every stage."""
    random = np.random.default_rng(seed)
    lengths = np.exp(spread * random.standard_normal((3, num_dp, 1, 8)))
    seconds = 0.1 * lengths * np.exp(noise * random.standard_normal((3, num_dp, num_stages, 8)))
    for (dp_rank, stage), factor in slow.items():
        seconds[:, dp_rank, stage] *= factor
    step, dp_rank, stage, batch = (place.ravel() for place in np.indices(seconds.shape))
    return Operations.from_columns(
        {
            "step": step,
            "dp_rank": dp_rank,
            "stage": stage,
            "optype": np.full(seconds.size, "forward-compute"),
            "start_ts": batch.astype(np.float64),
            "duration": seconds.ravel(),
            "mb_id": batch,
        }
    )


def accused(operations: Operations) -> tuple[int, ...]:
    return slow_workers(operations, operations.duration_seconds)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_dp", "num_stages"), [(2, 3), (3, 3), (4, 4), (3, 2), (4, 2)])
def test_one_slow_worker_is_found_among_sequences_of_any_length(
    num_dp: int, num_stages: int, spread: float, seed: int
) -> None:
    victim = seed % num_dp, (seed // 2) % num_stages
    shape = {"num_dp": num_dp, "num_stages": num_stages, "spread": spread, "seed": seed}
    assert accused(computed(slow={}, **shape)) == ()
    assert accused(computed(slow={victim: 1.25}, **shape)) == (victim[0] * num_stages + victim[1],)


@pytest.mark.parametrize("seed", range(3))
def test_of_two_stages_that_differ_in_half_of_the_replicas_or_more_nobody_is_accused_for_what_sequences_may_do(
    seed: int,
) -> None:
    shape = {"num_stages": 2, "spread": 0.8, "seed": seed}
    assert accused(computed(num_dp=3, slow={(0, 1): 1.4, (1, 0): 1.4}, **shape)) == ()
    assert accused(computed(num_dp=2, slow={(0, 1): 1.4}, **shape)) == ()
