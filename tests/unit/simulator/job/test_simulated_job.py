"""The simulated job against the SDK's real mailboxes: what a scheduler does, by hand."""

import threading

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.planning.repair import repaired
from evenkeel.simulator.fleet.scenario.models import TransformerShape
from evenkeel.simulator.job.hardware import Hardware
from evenkeel.simulator.live.simulated_job import Documents, SimulatedJob
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

NOW = 1_800_000_000.0
SHAPE = TransformerShape(num_layers=8, hidden=512, heads=8, kv_heads=8, feed_forward=2048)
HEALTHY = dict.fromkeys(range(8), 1.0)


@pytest.fixture
def job():
    home = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=8)
    return SimulatedJob(
        job_id="job",
        home=home,
        model=SHAPE.spec(),
        hardware=Hardware(seconds_per_flop=1e-13, transfer_seconds=1e-3),
        documents=Documents(token_budget=1024, mean_length=256.0),
        devices_per_node=4,
    )


def step(job, speeds=HEALTHY):
    return job.finish(job.begin(speeds), NOW)


def plan(job, layout, mode, epoch=1, steps=-1):
    """Prepare on all, commit on all."""
    reshape = Reshape(job_id="job", plan_id=f"plan-{epoch}", epoch=epoch, mode=mode, to_layout=layout)
    commit = Commit(
        reshape=reshape, from_epoch=job.epoch, from_layout=job.layout, sources=tuple(job.ranks), steps_applied=steps
    )
    for rank in job.ranks.values():
        rank.mailbox.prepare(reshape, 0.1)
    for rank in job.ranks.values():
        rank.mailbox.commit(commit)


def test_an_iteration_gives_a_record_of_each_rank_with_its_sample_and_progress(job):
    records = step(job)
    assert [record.rank[0] for record in records] == list(range(8))
    assert all([*record.job_id] == ["job"] and len(record.iteration) == len(record.progress) == 1 for record in records)
    assert {record.node[0] for record in records} == {"node-0", "node-1"}
    assert [record.sequence[0] for record in step(job)] == [1] * 8
    assert job.steps == 2


def test_a_slow_device_shows_in_its_own_compute_and_in_the_waiting_of_others(job):
    slow = {record.rank[0]: record for record in step(job, {**HEALTHY, 3: 0.5})}
    assert slow[3].forward_seconds[0] > 1.8 * slow[7].forward_seconds[0]
    assert slow[2].wait_tensor_seconds[0] > slow[3].wait_tensor_seconds[0]


def test_a_plan_at_the_boundary_is_applied_after_the_next_step(job):
    layout = repaired(job.home, set(range(8)) - {3})
    plan(job, layout, ApplyMode.BOUNDARY)
    step(job)
    assert (job.epoch, job.steps, job.layout.ranks) == (1, 1, tuple(rank for rank in range(8) if rank != 3))
    assert job.ranks[3].mailbox.state.phase is RankPhase.JOINING
    assert len(step(job)) == 7


def test_a_death_that_is_told_parks_the_survivors_until_a_plan_recovers_them(job):
    step(job)
    (told,) = job.kill(5, NOW, silent=False)
    assert ([*told.rank], told.events[0].rank) == ([-1], 5)
    assert not job.can_iterate
    records = job.wait_for_plan(NOW)
    assert {record.progress[0].operation for record in records} == {"parked"}
    assert all(rank.mailbox.state.phase is RankPhase.PARKED for rank in job.ranks.values())
    plan(job, repaired(job.home, set(job.ranks)), ApplyMode.RECOVER, steps=1)
    job.wait_for_plan(NOW)
    assert (job.epoch, job.steps) == (1, 1)
    assert job.can_iterate
    assert {record.epoch[0] for record in step(job)} == {1}


def test_a_silent_death_leaves_the_survivors_in_a_wait_until_they_are_interrupted(job):
    step(job)
    assert job.kill(5, NOW, silent=True) == []
    (first, *_) = job.wait_for_plan(NOW)
    assert (first.progress[0].operation, list(first.progress[0].waiting_for)) == ("wait:gradient", [5])
    assert all(rank.mailbox.state.phase is RankPhase.TRAINING for rank in job.ranks.values())
    for rank in job.ranks.values():
        rank.mailbox.interrupt(0, leave=False)
    job.wait_for_plan(NOW)
    assert all(rank.mailbox.state.phase is RankPhase.PARKED for rank in job.ranks.values())


def test_a_repaired_device_joins_as_a_later_process_of_its_rank(job):
    job.kill(5, NOW, silent=False)
    job.wait_for_plan(NOW)
    plan(job, repaired(job.home, set(job.ranks)), ApplyMode.RECOVER, steps=0)
    job.wait_for_plan(NOW)
    (started,) = job.replace(5, NOW)
    assert started.events[0].incarnation == 1
    assert job.replace(5, NOW) == []
    plan(job, job.home, ApplyMode.BOUNDARY, epoch=2)
    step(job)
    if job.epoch == 1:
        job.wait_for_plan(NOW)
    assert (job.epoch, job.layout.ranks) == (2, tuple(range(8)))
    assert {record.incarnation[0] for record in step(job) if record.rank[0] == 5} == {1}


def test_a_rank_that_is_told_to_leave_ends(job):
    job.ranks[2].mailbox.interrupt(0, leave=True)
    (record,) = job.evicted(NOW)
    assert record.events[0].rank == 2
    assert 2 not in job.ranks


def test_a_death_in_the_midst_of_a_plan_parks_those_who_had_taken_it(job):
    job.kill(5, NOW, silent=False)
    job.wait_for_plan(NOW)
    plan(job, repaired(job.home, set(job.ranks)), ApplyMode.RECOVER, steps=0)
    for rank in list(job.ranks.values())[:3]:
        rank.look()
    job.kill(0, NOW, silent=False)
    for rank in job.ranks.values():
        rank.mailbox.interrupt(1, leave=False)
    # First those who had it park and the others take it, then these park too.
    job.wait_for_plan(NOW)
    job.wait_for_plan(NOW)
    assert job.epoch == 0
    plan(job, repaired(job.home, set(job.ranks)), ApplyMode.RECOVER, epoch=2, steps=0)
    job.wait_for_plan(NOW)
    assert (job.epoch, job.layout.ranks) == (2, (1, 2, 3, 4, 6, 7))


def test_a_probe_tells_the_speed_of_the_device(job):
    answers = []
    asker = threading.Thread(target=lambda: answers.append(job.ranks[0].mailbox.probes.ask(1024, 2, 5.0)))
    asker.start()
    while not answers and asker.is_alive():
        job.ranks[0].serve_probe(0.5)
    asker.join()
    assert answers[0] == pytest.approx([2 * 1024**3 * 2e-13] * 2)
