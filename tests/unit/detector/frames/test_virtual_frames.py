"""Frames of jobs whose ranks have several stages: nobody is ill for that, and who is slow is found."""

from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Replica, Stage
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.services.detector.domain.findings.verdict import VerdictKind
from evenkeel.services.detector.domain.job.job import JobDetector
from tests.unit.detector.frames.test_routed_frames import HOME, frames, observed


def _virtual(replica: Replica) -> Replica:
    stages = tuple(
        Stage(first_block=s, stop_block=s + 1, ranks=replica.stages[s % 2].ranks, shares=(1,)) for s in range(4)
    )
    quota = replica.num_micro_batches
    return Replica(stages=stages, num_micro_batches=quota, orders=interleaved_orders(2, 2, quota))


FIRST, SECOND, THIRD = HOME.replicas
VIRTUAL = replace(HOME, replicas=(_virtual(FIRST), _virtual(SECOND), THIRD))


def test_several_stages_a_rank_make_nobody_ill_and_no_stage_heavy_nor_does_their_end() -> None:
    detector = JobDetector("job")
    for epoch, layout in enumerate((HOME, VIRTUAL, HOME)):
        verdicts, _ = observed(detector, frames(layout, 200 * epoch, 200 * epoch + 200, epoch=epoch))
        assert verdicts == [], f"epoch {epoch}"


def test_a_job_that_begins_with_several_stages_a_rank_is_learned_like_any_other() -> None:
    verdicts, profiles = observed(JobDetector("job"), frames(VIRTUAL, 0, 200))
    assert verdicts == []
    assert profiles[-1].transfer_seconds >= 0.0


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_slow_device_is_found_beside_or_with_several_stages(rank: int) -> None:
    detector = JobDetector("job")
    observed(detector, frames(VIRTUAL, 0, 60))
    verdicts, _ = observed(detector, frames(VIRTUAL, 60, 120, speed=lambda other: 0.7 if other == rank else 1.0))
    slow = [one for one in verdicts if one.kind is VerdictKind.COMPUTE_SLOW]
    assert {culprit.rank for one in verdicts for culprit in one.culprits} == {rank}
    assert slow[-1].throughput == pytest.approx(0.7, abs=0.03)


def test_a_slow_device_stays_slow_when_its_replica_gets_several_stages_a_rank() -> None:
    detector = JobDetector("job")
    observed(detector, frames(HOME, 0, 60))
    found, _ = observed(detector, frames(HOME, 60, 90, speed=lambda rank: 0.6 if rank == 1 else 1.0))
    assert {(one.kind, one.culprits[0].rank) for one in found} == {(VerdictKind.COMPUTE_SLOW, 1)}
    later, profiles = observed(
        detector, frames(VIRTUAL, 90, 150, epoch=1, speed=lambda rank: 0.6 if rank == 1 else 1.0)
    )
    assert {culprit.rank for one in later for culprit in one.culprits} <= {1}
    assert profiles[-1].throughputs[1].throughput == pytest.approx(0.6, abs=0.03)
    well, _ = observed(detector, frames(VIRTUAL, 150, 200, epoch=1))
    assert [(one.kind, one.culprits[0].rank) for one in well] == [(VerdictKind.RECOVERED, 1)]
