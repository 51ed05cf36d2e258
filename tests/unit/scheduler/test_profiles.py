from dataclasses import replace

import pytest

from services.scheduler.domain.job_state import AppliedPlan
from services.scheduler.domain.profiles import JobProfile, on_profile
from services.scheduler.domain.transitions import on_verdict
from tests.unit.scheduler.planning_cases import WORKLOAD
from tests.unit.scheduler.test_transitions import fresh_job, verdict


def profile(iteration: int, *, epoch: int = 0, seconds: float = 2.0) -> JobProfile:
    return JobProfile(
        job_id="job", iteration=iteration, epoch=epoch, workload=WORKLOAD, iteration_seconds=seconds, throughputs={}
    )


def test_the_newest_profile_says_what_the_work_is_and_corrects_predictions() -> None:
    job, measured = on_profile(fresh_job(), profile(10))
    assert measured is None
    assert job.workload == WORKLOAD
    again, _ = on_profile(job, profile(20, seconds=3.0))
    assert again.correction == pytest.approx(1.5 * job.correction)


def test_an_older_profile_changes_nothing() -> None:
    job, _ = on_profile(fresh_job(), profile(10))
    assert on_profile(job, profile(8, seconds=9.0)) == (job, None)


def test_a_plan_is_measured_once_its_epoch_has_settled() -> None:
    job = replace(fresh_job(), epoch=1, unmeasured=AppliedPlan(plan_id="p", epoch=1, first_iteration=20))
    job, measured = on_profile(job, profile(21, epoch=1))
    assert measured is None
    job, measured = on_profile(job, profile(25, epoch=1, seconds=2.5))
    assert measured is not None
    assert (measured.plan.plan_id, measured.seconds) == ("p", 2.5)
    assert on_profile(job, profile(30, epoch=1))[1] is None


def test_a_profile_of_another_epoch_measures_nothing() -> None:
    job = replace(fresh_job(), epoch=1, unmeasured=AppliedPlan(plan_id="p", epoch=1, first_iteration=20))
    _, measured = on_profile(job, profile(40, epoch=0))
    assert measured is None


def test_time_lost_against_the_healthy_job_is_charged_to_the_open_incident() -> None:
    job, _ = on_profile(fresh_job(), profile(10, seconds=2.0))
    job = on_verdict(job, verdict("compute_slow", 3, throughput=0.5)).job
    job, _ = on_profile(job, profile(20, seconds=3.0))
    (incident,) = job.incidents
    assert incident.lost_seconds == pytest.approx(10 * (3.0 - 2.0))


def test_the_exchange_of_a_block_follows_from_the_layout_in_force() -> None:
    told = replace(profile(10), exchange_seconds=0.012)
    job, _ = on_profile(fresh_job(), told)
    assert job.workload is not None
    # 8 blocks, of which the embedding is not sharded: replicas have two stages of two shards each.
    sharded = sum(block.max_width > 1 for block in job.model.blocks)
    assert job.workload.exchange_seconds == pytest.approx(0.012 / sharded)


def test_until_a_plan_has_settled_what_was_known_before_it_stays_known() -> None:
    job, _ = on_profile(fresh_job(), profile(10))
    job = replace(job, epoch=1, unmeasured=AppliedPlan(plan_id="p", epoch=1, first_iteration=20))
    unsettled = replace(profile(21, epoch=1), workload=replace(WORKLOAD, transfer_seconds=9.0))
    assert on_profile(job, unsettled)[0].workload == job.workload
    assert on_profile(job, replace(unsettled, iteration=30))[0].workload == unsettled.workload
