"""The benchmark's traces hold the faults that they say they hold, and its scores count what happened."""

import numpy as np
import pytest

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.traces.score import score_trace
from benchmarks.detection.traces.traces import DRIFT_OF_DEVICE, Scenario, make_trace


@pytest.mark.parametrize("scenario", list(Scenario))
def test_only_the_victims_of_a_trace_are_slow_and_only_while_it_says_so(scenario: Scenario) -> None:
    trace = make_trace(3, shape="4x2x2", num_iterations=120, slowdown_percent=50, scenario=scenario, noise_sigma=1e-6)
    healthy = make_trace(
        3, shape="4x2x2", num_iterations=120, slowdown_percent=1e-9, scenario=scenario, noise_sigma=1e-6
    )
    ratio = (trace.times.forward + trace.times.backward) / (healthy.times.forward + healthy.times.backward)
    expected = np.stack([1 / trace.true_throughput(iteration) for iteration in range(120)])
    assert np.allclose(ratio, expected, rtol=1e-3)
    assert len(trace.faults) == (2 if scenario is Scenario.TWO_VICTIMS else 1)
    assert len({fault.ranks for fault in trace.faults}) == len(trace.faults)
    assert all(fault.stop > fault.onset + 9 for fault in trace.faults)


def test_a_drift_slows_the_whole_job_and_hardly_tells_its_devices_apart() -> None:
    still, drifting = (
        make_trace(4, shape="4x2x2", num_iterations=120, scenario=scenario, noise_sigma=1e-6)
        for scenario in (Scenario.PERSISTENT, Scenario.DRIFT)
    )
    ratio = drifting.times.forward[-1] / still.times.forward[-1]
    assert ratio.min() > 1 - DRIFT_OF_DEVICE - 1e-3
    assert 1e-4 < np.ptp(ratio) <= 2 * DRIFT_OF_DEVICE + 1e-3


def test_a_finding_after_a_temporary_fault_has_ended_is_a_false_alarm() -> None:
    trace = make_trace(5, shape="4x2x2", num_iterations=300, slowdown_percent=25, scenario=Scenario.TEMPORARY)
    fault = trace.faults[0]
    assert fault.stop < 300
    during = Finding(iteration=fault.onset + 1, ranks=fault.ranks, throughput=0.79)
    after = Finding(iteration=fault.stop, ranks=fault.ranks, throughput=0.79)
    assert (score_trace(trace, [during]).delays, score_trace(trace, [during]).num_false) == ((2,), 0)
    assert score_trace(trace, [during]).severity_errors == pytest.approx((1.0,))
    assert (score_trace(trace, [after]).num_found, score_trace(trace, [after]).num_false) == (0, 1)
