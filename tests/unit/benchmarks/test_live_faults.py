"""A live campaign's faults and how verdicts are scored against them."""

from benchmarks.detection.faults import Fault, FaultKind, Finding, draw_faults, false_alarms, finding_of, summary_of
from demo.conditions import Moment
from demo.run_log import CulpritSeen, VerdictSeen
from history.vocabulary import VerdictKind

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


def found(given: VerdictSeen | None) -> Finding:
    return Finding.of(SLOW, BEGAN, given, ended_at=110.0, whole_again=True)


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


def test_the_summary_counts_by_kind_and_measures_the_error_of_the_speed() -> None:
    summary = summary_of([found(verdict(VerdictKind.COMPUTE_SLOW, 3)), found(None)])
    assert (summary["faults"], summary["found"]) == (2, 1)
    assert summary["by_kind"]["slow"]["median_iterations"] == 3
    assert abs(summary["median_speed_error"] - 0.01) < 1e-9
