from collections import Counter
from dataclasses import replace

import pytest

from evenkeel.demo.observed.run_log import MicroBatchSeen, RankSample
from evenkeel.demo.observed.timeline import CommittedIteration, committed_iterations, healthy_pace, relative_throughput
from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.report.summary import summarise
from evenkeel.history.vocabulary import VerdictKind
from tests.unit.demo.synthetic_run import LAYOUT, MODEL, NUM_MICRO_BATCHES, Run, whole_run

SUMMARY_KEYS = {"loss_max_relative_difference", "samples_lost", "samples_repeated", "false_verdicts", "events"}
EVENT_KEYS = {
    "kind",
    "injected_at",
    "iteration",
    "culprit_true",
    "culprit_found",
    "severity_true",
    "severity_found",
    "seconds_to_verdict",
    "iterations_to_verdict",
    "seconds_to_resume",
    "iteration_seconds_before",
    "iteration_seconds_during",
    "iteration_seconds_after",
    "plan_predicted_seconds",
    "proportional_bound",
    "plan_id",
}


def test_the_summary_has_exactly_the_promised_keys() -> None:
    values = summarise(whole_run().finish()).as_json()
    assert set(values) == SUMMARY_KEYS
    assert all(set(event) == EVENT_KEYS for event in values["events"])


def test_the_first_slow_device_is_told_with_its_figures() -> None:
    summary = summarise(whole_run().finish())
    event = next(event for event in summary.events if event.kind == "compute_slow")
    assert (event.culprit_true, event.culprit_found) == (3, 3)
    assert (event.severity_true, event.severity_found) == (0.5, 0.51)
    assert event.iterations_to_verdict == 3
    assert event.plan_id == "plan-1"
    assert event.iteration_seconds_before == pytest.approx(0.5, rel=0.1)
    assert event.iteration_seconds_during == pytest.approx(1.0, rel=0.1)
    assert event.iteration_seconds_after == pytest.approx(0.56, rel=0.1)


def test_a_death_resumes_with_the_first_step_under_a_layout_without_the_dead() -> None:
    run = Run()
    run.train(10)
    truth = run.truth(TruthKind.FAIL_STOP, 6, 0.0)
    run.speeds[6] = 1.0
    run.train(1)  # the step that was already voted when the rank was killed
    run.speeds[6] = 0.0
    run.plan(predicted=0.6, bound=7 / 8, gain=1.0)
    run.train(1)
    resumed_at = run.now
    run.train(2)
    event = summarise(run.finish()).events[0]
    assert event.seconds_to_resume == pytest.approx(resumed_at - truth.at)


def test_a_verdict_about_a_healthy_rank_is_false() -> None:
    run = whole_run()
    run.verdict(VerdictKind.COMPUTE_SLOW, 5, 0.8)
    assert summarise(run.finish()).false_verdicts == 1


def test_the_wrong_word_about_a_sick_rank_is_false() -> None:
    run = whole_run()
    run.verdict(VerdictKind.HANG, 0, 0.0)
    assert summarise(run.finish()).false_verdicts == 1


def test_a_verdict_before_its_failure_is_false() -> None:
    run = whole_run()
    first = next(truth for truth in run.truths if truth.kind is TruthKind.COMPUTE_SLOW)
    run.verdict(VerdictKind.COMPUTE_SLOW, 3, 0.9, at=first.at - 5.0)
    assert summarise(run.finish()).false_verdicts == 1


def test_a_report_about_workload_accuses_nobody() -> None:
    run = whole_run()
    run.verdict(VerdictKind.SEQUENCE_IMBALANCE, 5, 1.0)
    assert summarise(run.finish()).false_verdicts == 0


def test_the_wrong_culprit_is_written_down_as_found() -> None:
    run = Run()
    run.train(10)
    run.truth(TruthKind.COMPUTE_SLOW, 3, 0.5)
    run.train(2)
    run.verdict(VerdictKind.COMPUTE_SLOW, 2, 0.6)
    run.verdict(VerdictKind.COMPUTE_SLOW, 3, 0.5, at=run.now + 0.3)
    run.train(2)
    summary = summarise(run.finish())
    assert summary.events[0].culprit_found == 2
    assert summary.events[0].severity_found == 0.6
    assert summary.false_verdicts == 1


def sample(run: Run, iteration: int, rank: int) -> RankSample:
    return next(each for each in run.log.samples_of(iteration) if each.rank == rank)


def test_a_micro_batch_that_two_replicas_ran_is_repeated() -> None:
    run = Run()
    run.train(5)
    run.epoch = 1
    for rank in range(8):
        own = sample(run, 4, rank)
        extra = (*own.micro_batches, MicroBatchSeen(index=0, tokens=1000, sum_of_squares=1e6))
        run.log.add_sample(replace(own, iteration=5, epoch=1, micro_batches=extra if rank > 3 else own.micro_batches))
    run.iteration = 6
    run.train(2)
    summary = summarise(run.finish())
    assert (summary.samples_lost, summary.samples_repeated) == (0, 1)


def test_a_micro_batch_whose_sums_survivors_kept_counts_once() -> None:
    run = Run()
    run.train(5)
    for rank in range(8):
        own = sample(run, 4, rank)
        kept = tuple(batch for batch in own.micro_batches if batch.index == 2)
        others = tuple(batch for batch in own.micro_batches if batch.index != 2)
        everywhere = kept or (MicroBatchSeen(index=2, tokens=1000, sum_of_squares=1e6),)
        run.log.add_sample(replace(own, iteration=5, micro_batches=others, kept_micro_batches=everywhere))
    run.iteration = 6
    run.train(2)
    summary = summarise(run.finish())
    assert (summary.samples_lost, summary.samples_repeated) == (0, 0)


def test_a_micro_batch_that_nobody_ran_is_lost() -> None:
    run = Run()
    run.train(5)
    for rank in range(8):
        own = sample(run, 4, rank)
        kept = tuple(batch for batch in own.micro_batches if batch.index != 2)
        run.log.add_sample(replace(own, iteration=5, micro_batches=kept))
    run.iteration = 6
    run.train(2)
    summary = summarise(run.finish())
    assert (summary.samples_lost, summary.samples_repeated) == (1, 0)


def test_an_iteration_that_nobody_reported_is_lost_whole() -> None:
    run = Run()
    run.train(5)
    run.iteration = 6
    run.train(2)
    assert summarise(run.finish()).samples_lost == NUM_MICRO_BATCHES


def test_an_iteration_that_a_process_finished_twice_is_repeated() -> None:
    run = Run()
    run.train(5)
    run.epoch = 1
    run.iteration = 4
    run.train(3)
    assert summarise(run.finish()).samples_repeated == NUM_MICRO_BATCHES


def test_an_attempt_that_only_the_dead_finished_does_not_count() -> None:
    run = Run()
    run.train(5)
    attempt = replace(sample(run, 4, 6), iteration=5)
    run.log.add_sample(attempt)
    run.speeds[6] = 0.0
    run.epoch = 1
    run.train(3)
    summary = summarise(run.finish())
    assert (summary.samples_lost, summary.samples_repeated) == (0, 0)


def test_records_that_arrive_twice_change_nothing() -> None:
    once, twice = whole_run(), whole_run()
    for _, samples in list(twice.log.iterations()):
        twice.log.extend(samples)
    twice.log.extend(twice.log.verdicts)
    twice.log.extend(twice.log.plans)
    assert summarise(once.finish()) == summarise(twice.finish())


def test_the_fixed_part_of_an_iteration_is_told_from_the_part_that_follows_the_work() -> None:
    entries = [
        CommittedIteration(
            iteration=number,
            epoch=0,
            committed_at=float(number),
            # Two iterations in ten were disturbed; the line must not follow them.
            seconds=0.1 + 2e-9 * work + (0.7 if number % 5 == 0 else 0.0),
            work=2 * work,
            critical_work=work,
            tokens=1,
            loss=None,
            uses=Counter(),
            samples=(),
        )
        for number, work in enumerate([1e8 * (1 + number * 7 % 11 / 10) for number in range(40)])
    ]
    pace = healthy_pace(entries, until=1e9)
    assert pace is not None
    assert pace.fixed_seconds == pytest.approx(0.1, rel=0.02)
    assert pace.seconds_per_work == pytest.approx(2e-9, rel=0.02)


def test_long_documents_do_not_look_slow() -> None:
    run = Run()
    run.train(45)
    seen = run.finish()
    iterations = committed_iterations(run.log, MODEL, LAYOUT)
    values = [relative_throughput(iterations[k], seen.pace) for k in seen.long_documents]
    assert values == pytest.approx([1.0] * len(values), rel=0.05)
    assert iterations[36].seconds == pytest.approx(1.25, rel=0.2)
