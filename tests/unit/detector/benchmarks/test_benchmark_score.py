import pytest

from benchmarks.detection.baselines.finding import Finding
from benchmarks.detection.baselines.greyhound import Greyhound
from benchmarks.detection.baselines.resihp import ResiHP
from benchmarks.detection.traces.score import score_cell, score_trace
from benchmarks.detection.traces.traces import make_trace


@pytest.fixture(scope="module")
def slow_trace():
    return make_trace(0, shape="4x2x2", slowdown_percent=100.0)


def test_a_right_accusation_counts_with_its_delay_and_severity_and_only_once(slow_trace):
    (fault,) = slow_trace.faults
    right = Finding(iteration=fault.onset + 2, ranks=fault.ranks, throughput=0.48)
    again = Finding(iteration=fault.onset + 9, ranks=fault.ranks, throughput=0.5)
    score = score_trace(slow_trace, [right, again])
    assert (score.num_found, score.delays, score.num_false) == (1, (3,), 0)
    assert score.severity_errors[0] == pytest.approx(2.0)


def test_accusing_the_healthy_nobody_or_too_early_is_a_false_alarm(slow_trace):
    (fault,) = slow_trace.faults
    healthy = next(rank for rank in slow_trace.times.ranks if rank not in fault.ranks)
    findings = [
        Finding(iteration=fault.onset, ranks=(healthy,)),
        Finding(iteration=fault.onset, ranks=()),
        Finding(iteration=fault.onset - 1, ranks=fault.ranks),
    ]
    score = score_trace(slow_trace, findings)
    assert (score.num_found, score.num_false) == (0, 3)
    cell = score_cell([score])
    assert cell.found_percent == 0.0
    assert cell.false_per_1000_iterations == pytest.approx(1000.0 * 3 / slow_trace.num_iterations)


@pytest.mark.parametrize("detector", [Greyhound(), ResiHP()])
def test_the_reproductions_find_a_device_at_half_speed(detector, slow_trace):
    (fault,) = slow_trace.faults
    accusing = [finding for finding in detector.findings(slow_trace) if finding.ranks]
    assert [finding.ranks for finding in accusing] == [fault.ranks]
    assert accusing[0].throughput == pytest.approx(0.5)
