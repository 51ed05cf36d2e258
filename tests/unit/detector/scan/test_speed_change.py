import numpy as np
import pytest

from evenkeel.services.detector.domain.scan.residual.clocks import Clock
from evenkeel.services.detector.domain.scan.speed_change import throughputs_of

CLOCKS = (Clock.WORK, Clock.BLOCKED, Clock.WALL)


@pytest.mark.parametrize(
    ("work", "blocked", "wall", "doubt", "throughput"),
    [
        pytest.param(1.0, 1.0, 1.0, 0.9, 1.0, id="healthy"),
        pytest.param(1.5, 1.5, 1.0, 0.9, 0.5, id="what clocks say adds up"),
        pytest.param(1.5, 1.0, 1.6, 0.9, 1 / 1.5, id="the wall says more, within doubt"),
        pytest.param(1.5, 1.0, 2.5, 0.8, 0.5, id="the wall says more, as far as it is beyond doubt"),
        pytest.param(1.0, 1.0, 2.0, 0.8, 0.5, id="the wall alone, beyond doubt"),
        pytest.param(1.0, 1.0, 1.05, 0.9, 1.0, id="the wall alone, within doubt: healthy"),
    ],
)
def test_the_wall_counts_beyond_doubt(
    work: float, blocked: float, wall: float, doubt: float, throughput: float
) -> None:
    ratios, doubts = np.array([[work], [blocked], [wall]]), np.full((3, 1), doubt)
    assert throughputs_of(CLOCKS, ratios, doubts) == pytest.approx(throughput)
