from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.planning.solver.small_jobs import WORKLOAD
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.parts import AppliedPlan
from evenkeel.services.scheduler.domain.profiles import JobProfile, on_profile
from evenkeel.services.scheduler.domain.transitions import on_applied, on_verdict
from tests.unit.scheduler.domain.test_transitions import HOME, START, fresh_job, in_flight, verdict


def profile(iteration: int, *, epoch: int = 0, seconds: float = 2.0) -> JobProfile:
    return JobProfile(
        job_id="job", iteration=iteration, epoch=epoch, workload=WORKLOAD, iteration_seconds=seconds, throughputs={}
    )


def plan_of_epoch_1(first_iteration: int) -> AppliedPlan:
    return AppliedPlan(record=in_flight(1, HOME).record, first_iteration=first_iteration)


def in_epoch_1(job: JobKnowledge, first_iteration: int) -> JobKnowledge:
    layouts = {**job.layouts, 1: job.layout}
    return replace(job, epoch=1, layouts=layouts, unmeasured=plan_of_epoch_1(first_iteration))


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
    job = in_epoch_1(fresh_job(), 20)
    job, measured = on_profile(job, profile(21, epoch=1))
    assert measured is None
    job, measured = on_profile(job, profile(25, epoch=1, seconds=2.5))
    assert (job.unmeasured, measured) == (None, 2.5)
    assert on_profile(job, profile(30, epoch=1))[1] is None


def test_a_profile_of_another_epoch_measures_nothing() -> None:
    job = in_epoch_1(fresh_job(), 20)
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


def test_what_a_pair_exchanges_follows_from_the_layout_in_force_and_stays_known_where_nobody_exchanges() -> None:
    job, _ = on_profile(fresh_job(), replace(profile(10), gradient_seconds=0.03))
    assert job.workload is not None
    cost = CostModel(job.model, job.workload, job.correction)
    assert cost.gradients.seconds([replica.stages for replica in job.layout.replicas]) == pytest.approx(0.03)
    (first, *_) = job.layout.replicas
    stages = [replace(stage, ranks=stage.ranks[:1], shares=(1,)) for stage in first.stages]
    alone = Replica(stages=tuple(stages), num_micro_batches=job.layout.num_micro_batches)
    without, _ = on_profile(replace(job, layouts={0: replace(job.layout, replicas=(alone,))}), profile(20))
    assert without.workload is not None
    assert without.workload.gradient_seconds == job.workload.gradient_seconds > 0.03


def test_until_a_plan_has_settled_what_was_known_before_it_stays_known() -> None:
    job, _ = on_profile(fresh_job(), profile(10))
    job = in_epoch_1(job, 20)
    unsettled = replace(profile(21, epoch=1), workload=replace(WORKLOAD, transfer_seconds=9.0))
    assert on_profile(job, unsettled)[0].workload == job.workload
    assert on_profile(job, replace(unsettled, iteration=30))[0].workload == unsettled.workload


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_a_loop_that_does_not_say_what_its_model_costs_is_priced_by_what_its_iterations_take(speed: float) -> None:
    work = replace(WORKLOAD, seconds_per_flop=1.0, fixed_seconds=0.2)
    unpriced = replace(profile(10, seconds=0.3 + 1.6 / speed), workload=work, priced=False, throughputs={3: speed})
    unpriced = replace(unpriced, gradient_seconds=0.1)
    job, _ = on_profile(fresh_job(), unpriced)
    assert job.workload is not None
    cost = CostModel(job.model, job.workload, job.correction)
    healthy = Replay(cost).seconds(job.layout, dict.fromkeys(job.layout.ranks, 1.0))
    as_it_is = Replay(cost).seconds(job.layout, {**dict.fromkeys(job.layout.ranks, 1.0), 3: speed})
    assert as_it_is == pytest.approx(0.3 + 1.6 / speed)
    assert healthy <= as_it_is


def test_without_a_price_and_with_nothing_to_make_one_of_nothing_is_learned() -> None:
    work = replace(WORKLOAD, seconds_per_flop=1.0, fixed_seconds=3.0)
    unpriced = replace(profile(10, seconds=2.0), workload=work, priced=False)
    assert on_profile(fresh_job(), unpriced) == (fresh_job(), None)


def test_without_iterations_to_replay_ranks_with_several_stages_say_nothing_of_transfers() -> None:
    job, _ = on_profile(fresh_job(), profile(10))
    (first, *_) = job.layout.replicas
    ranks = first.stages[0].ranks, first.stages[1].ranks
    stages = tuple(
        Stage(first_block=2 * s, stop_block=2 * s + 2, ranks=ranks[s % 2], shares=(1,) * len(ranks[0]))
        for s in range(4)
    )
    quota = job.layout.num_micro_batches
    orders = interleaved_orders(2, 2, quota)
    alone = Replica(stages=stages, num_micro_batches=quota, orders=orders)
    told = replace(profile(20), workload=replace(WORKLOAD, transfer_seconds=0.0, fixed_seconds=0.02))
    there, _ = on_profile(replace(job, layouts={0: replace(job.layout, replicas=(alone,))}), told)
    assert there.workload == replace(WORKLOAD, fixed_seconds=0.02)
    assert on_profile(job, told)[0].workload == told.workload


def test_several_stages_a_rank_teach_what_transfers_take_and_the_way_home_is_predicted_from_it() -> None:
    job, num = fresh_job(), fresh_job().layout.num_micro_batches
    truth = replace(
        WORKLOAD,
        transfer_seconds=0.02,
        recent=(RecentIteration(wall_seconds=1.0, tokens=(1000,) * num, sums_of_squares=(10_000,) * num),) * 8,
    )

    def told(layout: Layout, iteration: int, epoch: int) -> JobProfile:
        seconds = Replay(CostModel(job.model, truth)).seconds(layout, everybody)
        ran = replace(truth, transfer_seconds=0.0, recent=tuple(replace(r, wall_seconds=seconds) for r in truth.recent))
        return replace(profile(iteration, epoch=epoch, seconds=seconds), workload=ran)

    everybody = dict.fromkeys(job.layout.ranks, 1.0)
    stages = tuple(
        Stage(first_block=2 * s, stop_block=2 * s + 2, ranks=(s % 2,), shares=(1,))
        for s in range(job.layout.num_blocks // 2)
    )
    orders = interleaved_orders(2, len(stages) // 2, num)
    several = replace(job.layout, replicas=(Replica(stages=stages, num_micro_batches=num, orders=orders),))
    knowing = replace(job, workload=replace(truth, transfer_seconds=0.004, transfers_in_line=2.0))
    there = replace(knowing, layouts={**knowing.layouts, 1: several}, epoch=1)
    for iteration in (10, 15):
        there, _ = on_profile(there, told(several, iteration, epoch=1))
    assert there.workload is not None
    assert there.workload.transfer_seconds == pytest.approx(truth.transfer_seconds, rel=0.1)
    assert there.correction == pytest.approx(1.0, rel=0.02)
    home = Replay(CostModel(job.model, there.workload, there.correction)).seconds(job.layout, everybody)
    assert home == pytest.approx(Replay(CostModel(job.model, truth)).seconds(job.layout, everybody), rel=0.02)


@pytest.mark.parametrize(("planned_for", "is_told"), [({}, False), ({3: 0.5}, True)])
def test_while_ranks_wait_for_one_that_is_slow_iterations_tell_nothing_of_transfers(
    planned_for: dict[int, float], is_told: bool
) -> None:
    job = fresh_job()
    num = job.layout.num_micro_batches
    recent = (RecentIteration(wall_seconds=9.0, tokens=(1000,) * num, sums_of_squares=(10_000,) * num),) * 8
    known = replace(WORKLOAD, transfer_seconds=0.004, transfers_in_line=2.0, recent=recent)
    slow = replace(profile(10, seconds=9.0), workload=replace(WORKLOAD, recent=recent), throughputs={3: 0.5})
    answered = {rank: planned_for.get(rank, 1.0) for rank in job.layout.ranks} if planned_for else {}
    there, _ = on_profile(replace(job, workload=known, answered=answered), slow)
    assert there.workload is not None
    assert (there.workload.transfer_seconds != known.transfer_seconds) == is_told


def taken(iteration: int, at_seconds: float, *, epoch: int = 0, seconds: float = 2.0) -> JobProfile:
    return replace(profile(iteration, epoch=epoch, seconds=seconds), taken_at_unix_seconds=at_seconds)


def test_a_job_that_goes_back_to_a_checkpoint_is_followed_from_there() -> None:
    job, _ = on_profile(fresh_job(), taken(500, 1000.0))
    for step in range(10):
        job, _ = on_profile(job, taken(100 + 5 * step, 1002.0 + 10.0 * step, seconds=3.0))
    assert job.iteration == 145
    assert job.correction == pytest.approx(1.5 * on_profile(fresh_job(), taken(500, 1000.0))[0].correction)


def test_profiles_that_come_twice_after_a_restart_of_the_detector_are_no_job_that_goes_back() -> None:
    before, _ = on_profile(fresh_job(), taken(500, 1000.0))
    again = before
    for iteration in (480, 485, 490, 495, 500):
        again, measured = on_profile(again, taken(iteration, 1000.0 + iteration - 470, seconds=9.0))
        assert (again.iteration, again.correction, measured) == (500, before.correction, None)
    assert on_profile(again, taken(480, 1200.0))[0].iteration == 500


def test_a_recovery_from_a_checkpoint_is_measured_though_its_iterations_were_there_before() -> None:
    job, _ = on_profile(fresh_job(), profile(500))
    job = on_verdict(job, verdict("fail_stop", 3)).job
    job = replace(job, flight=in_flight(1, job.layout, mode=PlanMode.BOUNDARY))
    job = on_applied(job, first_iteration=400, at=START + timedelta(seconds=60.0)).job
    job, measured = on_profile(job, profile(402, epoch=1))
    assert (job.iteration, measured) == (402, None)
    job, measured = on_profile(job, profile(407, epoch=1, seconds=2.5))
    assert measured == 2.5


def test_a_plan_is_measured_in_a_job_that_went_back_to_before_its_first_iteration() -> None:
    job = in_epoch_1(fresh_job(), 500)
    _, measured = on_profile(job, profile(100, epoch=1, seconds=2.5))
    assert measured is not None
