"""What a suspicion cost is read off two runs: whatever the machine did to both, or to a stretch of one, is left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.detection.aspects.suspicion_cost import costs_of, table

ASKED = [(8, 0.006, 0.007), (16, 0.006, 0.006), (24, 0.012, 0.006)]


@given(
    paid_seconds=st.floats(min_value=0.0, max_value=0.1),
    slower_seconds=st.floats(min_value=-0.05, max_value=0.05),
    seed=st.integers(0, 100),
    window=st.sampled_from([2, 3]),
)
def test_the_cost_is_what_the_few_iterations_after_it_took_longer(
    paid_seconds: float, slower_seconds: float, seed: int, window: int
) -> None:
    alone = np.random.default_rng(seed).uniform(0.4, 0.6, 40)
    suspected = alone + slower_seconds
    for iteration, _, _ in ASKED:
        suspected[iteration : iteration + window] += paid_seconds / window
    costs = costs_of(alone, suspected, ASKED, window)
    for cost, (_, suspect_seconds, peer_seconds) in zip(costs, ASKED, strict=True):
        assert cost.seconds == pytest.approx(paid_seconds, abs=1e-9)
        assert cost.quiet_seconds == pytest.approx(0.0, abs=1e-9)
        assert cost.rest_seconds == pytest.approx(paid_seconds - max(suspect_seconds, peer_seconds), abs=1e-9)


def test_the_table_tells_what_it_costs_and_what_the_machine_does_without_it() -> None:
    alone = np.full(40, 0.5)
    suspected = alone.copy()
    suspected[[9, 17, 25]] += 0.020
    rows = table(costs_of(alone, suspected, ASKED)).splitlines()
    assert rows[2] == "| a suspicion | 20.0 | 20.0 | 20.0 |"
    assert rows[3] == "| no suspicion | 0.0 | 0.0 | 0.0 |"
