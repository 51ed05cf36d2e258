"""Cases of real loops, what their recordings say was done, and how verdicts are judged by it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.detection.live.cases import QUICK, Case, Fault, Loop, all_cases
from benchmarks.detection.live.record import factors_of
from benchmarks.detection.live.rows import read_rows, row_of, write_rows
from benchmarks.detection.recorded.recordings import Truth, judge, read_outcomes, write_outcomes
from evenkeel.offline.iterations.clocks import ClockChoice, clocks_of
from evenkeel.offline.iterations.file import read_iterations
from evenkeel.trainer_sdk.emit.measured import Measured

WARM_UP, BEGIN, ITERATIONS = 5, 150, 200


def recording(folder: Path, *, work: float = 1.0, blocked: float = 0.0, input_seconds: float = 0.0) -> Path:
    """Two ranks that compute 20 ms on a core; rank 1 does more from the 150th iteration on."""
    rng = np.random.default_rng(3)
    rows = []
    for iteration in range(WARM_UP + ITERATIONS):
        for rank in (0, 1):
            sick = rank == 1 and iteration >= WARM_UP + BEGIN
            cpu = 0.02 * float(np.exp(0.02 * rng.standard_normal())) * (work if sick else 1.0)
            measured = Measured(
                iteration=iteration,
                forward_seconds=cpu + 0.001 + (blocked if sick else 0.0),
                cpu_seconds=cpu,
                queued_seconds=0.001,
                wait_gradient_seconds=0.003,
                input_seconds=input_seconds if sick else 0.0,
                wall_seconds=0.05,
                tokens=8,
            )
            rows.append(row_of(rank, measured))
    path = folder / "job.csv.gz"
    write_rows(path, rows, skipped=WARM_UP)
    return path


@pytest.mark.parametrize("cases", [list(all_cases(100)), list(QUICK)])
def test_cases_have_names_of_their_own_and_survive_the_command_line(cases: list[Case]) -> None:
    assert len({case.name for case in cases}) == len(cases)
    assert [Case.from_json(case.as_json()) for case in cases] == cases


@pytest.mark.parametrize("extra", [{"work": 1.5}, {"blocked": 0.01}, {"input_seconds": 0.01}])
def test_what_the_sdk_measured_is_what_a_replay_reads(tmp_path: Path, extra: dict[str, float]) -> None:
    clocks = clocks_of(read_iterations(recording(tmp_path, **extra)), ClockChoice.ALL)
    assert clocks.work.shape == (ITERATIONS, 2)
    assert clocks.blocked is not None
    grown = np.nanmean(clocks.blocked[BEGIN:, 1]) - np.nanmean(clocks.blocked[:BEGIN, 1])
    assert grown == pytest.approx(sum(seconds for name, seconds in extra.items() if name != "work"), abs=1e-6)


@pytest.mark.parametrize(
    ("fault", "extra", "measured", "cpu"),
    [
        (Fault.WORK, {"work": 1.5}, 1.5, 1.5),
        (Fault.SLEEP, {"blocked": 0.01}, 1.5, 1.0),
        (Fault.INPUT, {"input_seconds": 0.01}, 1.5, 1.0),
        (Fault.NOISY, {"work": 1.5}, 1.0, 1.0),
    ],
)
def test_the_truth_is_what_the_recording_shows(
    tmp_path: Path, fault: Fault, extra: dict[str, float], measured: float, cpu: float
) -> None:
    case = Case(loop=Loop.DDP, ranks=2, fault=fault, factor=1.5, begin=BEGIN, end=ITERATIONS, iterations=ITERATIONS)
    found = factors_of(case, read_rows(recording(tmp_path, **extra)))
    assert found.measured == pytest.approx(measured, rel=0.02)
    assert found.cpu == pytest.approx(cpu, rel=0.02)


@pytest.mark.parametrize(
    ("told", "extra", "throughput"), [("work", {"work": 1.5}, 1 / 1.5), ("sleep", {"blocked": 0.01}, 1 / 1.5)]
)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_verdict_is_judged_by_whom_when_how_bad_and_why(
    tmp_path: Path, told: str, extra: dict[str, float], throughput: float, culprit: int
) -> None:
    path = recording(tmp_path, **extra)
    factors = {ClockChoice.ALL: 1.5, ClockChoice.WALL: 1.5}
    truth = Truth(name="job", ranks=2, fault=told, culprit=culprit, begin=BEGIN, end=ITERATIONS, factors=factors)
    outcome = judge(path, truth, ClockChoice.ALL)
    if culprit == 0:
        assert outcome.delay is None
        assert [rank for rank, _ in outcome.wrong] == [1]
        assert not outcome.holds
    else:
        assert outcome.holds
        assert outcome.cause in ({"work", "wall"} if told == "work" else {"blocked", "wall"})
        assert outcome.is_right == (outcome.cause != "wall")
        assert outcome.throughput == pytest.approx(throughput, abs=0.05)
    write_outcomes(tmp_path / "outcomes.json", [outcome])
    assert [one.name for one in read_outcomes(tmp_path / "outcomes.json")] == ["job"]
