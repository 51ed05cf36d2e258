"""Whoever watches a job reads each thing once."""

from evenkeel.cli.terminal.watch_lines import WatchLines
from evenkeel.layouts.codec import layout_to_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.scheduler.v1 import scheduler_pb2 as pb


def job(
    *, epoch: int = 0, state: pb.JobState = pb.JOB_STATE_RUNNING, data: int = 2, standing: str = ""
) -> pb.WatchJobResponse:
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=1, data=data, num_micro_batches=4)
    return pb.WatchJobResponse(
        job=pb.Job(
            state=state,
            epoch=epoch,
            proportional_bound=1.0,
            layout=layout_to_proto(layout),
            standing=pb.Standing(summary=standing),
        )
    )


def plan(state: pb.PlanState, reason: str, *, plan_id: str = "a", measured: float = 0.0) -> pb.WatchJobResponse:
    found = pb.Plan(plan_id=plan_id, state=state, reason=reason, predicted_seconds=0.25, measured_seconds=measured)
    return pb.WatchJobResponse(plan=found)


def test_the_reason_of_a_plan_is_told_again_only_when_it_changed() -> None:
    lines = WatchLines()
    told = [
        lines.line(each)
        for each in (
            plan(pb.PLAN_STATE_PROPOSED, "it pays"),
            plan(pb.PLAN_STATE_COMMITTED, "it pays"),
            plan(pb.PLAN_STATE_PROPOSED, "it pays", plan_id="b"),
            plan(pb.PLAN_STATE_ABORTED, "rank 1 refused"),
            plan(pb.PLAN_STATE_MEASURED, "rank 1 refused", measured=0.5),
        )
    ]
    assert told == [
        "proposed: nothing, predicted 0.250 s; it pays",
        "committed: nothing, predicted 0.250 s",
        "proposed: nothing, predicted 0.250 s; it pays",
        "aborted: nothing, predicted 0.250 s; rank 1 refused",
        "measured: nothing, predicted 0.250 s, measured 0.500 s",
    ]


def test_a_job_is_told_when_it_changed_and_its_layout_when_that_did() -> None:
    lines = WatchLines()
    first = lines.line(job())
    assert first == "running, epoch 0, bound 1.000, 2x 0-1[0] | 2x 0-1[1]"
    assert lines.line(job()) == ""
    assert lines.line(job(state=pb.JOB_STATE_RESHAPING)) == "reshaping, epoch 0, bound 1.000"
    stuck = job(state=pb.JOB_STATE_STUCK, standing="training 0 of 2, stuck")
    assert [lines.line(stuck), lines.line(stuck)] == ["stuck, epoch 0, bound 1.000, training 0 of 2, stuck", ""]
    assert lines.line(job(epoch=1, data=1)) == "running, epoch 1, bound 1.000, 4x 0-1[0]"


def test_after_the_fleet_api_was_away_the_job_is_told_as_it_is() -> None:
    lines = WatchLines()
    first = lines.line(job())
    lines.forget_job()
    assert lines.line(job()) == first


def test_what_a_newer_fleet_api_tells_is_passed_over() -> None:
    assert WatchLines().line(pb.WatchJobResponse()) == ""
