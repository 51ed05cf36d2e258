"""A live campaign's faults and how verdicts are scored against them."""

from pathlib import Path

from benchmarks.detection.faults import Fault, FaultKind, Finding, draw_faults, false_alarms, finding_of
from benchmarks.detection.live_report import LiveReport
from evenkeel.demo.observed.run_log import CulpritSeen, VerdictSeen
from evenkeel.demo.script.conditions import Moment
from evenkeel.history.vocabulary import VerdictKind

BEGAN = Moment(at=100.0, iteration=40, epoch=0)
SLOW = Fault(kind=FaultKind.SLOW, rank=3, throughput=0.8, delay_seconds=1.0)


def verdict(kind: VerdictKind, *ranks: int, at: float = 102.0, throughput: float = 0.79) -> VerdictSeen:
    return VerdictSeen(
        verdict_id=f"{kind}{ranks}{at}",
        kind=kind,
        culprits=tuple(CulpritSeen(rank=rank, incarnation=0) for rank in ranks),
        throughput=throughput,
        throughput_margin=0.01,
        confidence=0.99,
        first_iteration=41,
        decided_iteration=43,
        decided_at=at,
        received_at=at,
    )


def found(*given: VerdictSeen, fault: Fault = SLOW) -> Finding:
    return Finding.of(fault, BEGAN, given, ended_at=110.0, whole_again=True)


def test_faults_are_the_same_for_the_same_seed_and_of_every_kind() -> None:
    faults = draw_faults(50, 8, 0)
    assert faults == draw_faults(50, 8, 0)
    assert faults != draw_faults(50, 8, 1)
    assert {fault.kind for fault in faults} == set(FaultKind)
    assert {fault.rank for fault in faults} == set(range(8))


def test_a_verdict_counts_only_when_it_is_about_the_victim_alone_and_after_the_injection() -> None:
    right = verdict(VerdictKind.COMPUTE_SLOW, 3)
    wrong = [
        verdict(VerdictKind.COMPUTE_SLOW, 2),
        verdict(VerdictKind.COMPUTE_SLOW, 2, 3),
        verdict(VerdictKind.HANG, 3),
        verdict(VerdictKind.COMPUTE_SLOW, 3, at=99.0),
    ]
    assert finding_of(SLOW, BEGAN, wrong) is None
    assert finding_of(SLOW, BEGAN, [*wrong, right]) is right


def test_a_verdict_that_no_fault_explains_is_a_false_alarm() -> None:
    explained = [verdict(VerdictKind.COMPUTE_SLOW, 3), verdict(VerdictKind.RECOVERED, 3, at=108.0)]
    workload = verdict(VerdictKind.SEQUENCE_IMBALANCE)
    late = verdict(VerdictKind.COMPUTE_SLOW, 3, at=120.0)
    other = verdict(VerdictKind.COMPUTE_SLOW, 5)
    assert false_alarms([found(explained[0])], [*explained, workload, late, other]) == [late, other]


def test_a_fault_is_found_but_not_rightly_when_somebody_else_was_accused_first() -> None:
    right, other = verdict(VerdictKind.COMPUTE_SLOW, 3, at=103.0), verdict(VerdictKind.COMPUTE_SLOW, 5)
    advice, old = verdict(VerdictKind.INPUT_STALL, 5), verdict(VerdictKind.HANG, 5, at=99.0)
    assert found(advice, old, right).right
    assert found(other, right).verdict == VerdictKind.COMPUTE_SLOW
    assert not found(other, right).right
    assert not found().right


def test_the_table_counts_found_right_and_false_by_kind_of_fault() -> None:
    right, other = verdict(VerdictKind.COMPUTE_SLOW, 3, at=103.0), verdict(VerdictKind.COMPUTE_SLOW, 5)
    late, advice = verdict(VerdictKind.HANG, 1, at=200.0), verdict(VerdictKind.SEQUENCE_IMBALANCE)
    report = LiveReport(seed=0)
    report.take([found(other, right)], [other, right, advice, late])
    assert report.alarms == [("compute slow [5]", "slow"), ("hang [1]", "no fault")]
    slow, everything = report.table().splitlines()[2:4]
    assert slow == "| slow | 1 | 100.0 (5.0) | 0.0 | 3.00 (3.00) | 3 (3) | 1.0 | 1 of 1 | 1 |"
    assert everything == "| all | 1 | 100.0 (5.0) | 0.0 | 3.00 (3.00) | 3 (3) | 1.0 | 1 of 1 | 2 |"
    assert "Advice in all: 1 sequence imbalance." in report.table()


def test_a_campaign_that_was_stopped_goes_on_from_what_it_wrote(tmp_path: Path) -> None:
    report = LiveReport(seed=7, healthy_seconds=60.0, healthy_iterations=100, minutes=2.5)
    report.take([found(verdict(VerdictKind.COMPUTE_SLOW, 3)), found()], [verdict(VerdictKind.JITTER, 2)])
    report.write(tmp_path / "live.json")
    again = LiveReport.read(tmp_path / "live.json")
    assert again == report
    again.take([found()], [verdict(VerdictKind.JITTER, 2)])
    assert (len(again.findings), again.advice) == (3, {"jitter": 2})
