"""Messages of the fleet API become rows whose values JSON can hold."""

import json
from datetime import UTC, datetime

from evenkeel.cli.fleet.messages import (
    incident_row,
    job_row,
    layout_text,
    plan_row,
    rank_rows,
    standing_row,
    verdict_row,
)
from evenkeel.cli.terminal.watch_lines import WatchLines
from evenkeel.common.v1.layout_pb2 import Layout, Replica, Stage
from evenkeel.detector.v1.detector_pb2 import VERDICT_KIND_COMPUTE_SLOW, Culprit, Verdict
from evenkeel.scheduler.v1.scheduler_pb2 import (
    JOB_STATE_DEGRADED,
    JOB_STATE_RUNNING,
    JOB_STATE_STUCK,
    PLAN_STATE_APPLIED,
    STUCK_REASON_UNHEARD,
    Action,
    Incident,
    Job,
    Loss,
    Plan,
    Rank,
    Standing,
    WatchJobResponse,
)

LAYOUT = Layout(
    num_blocks=6,
    replicas=[
        Replica(
            num_micro_batches=5,
            stages=[
                Stage(first_block=0, stop_block=3, ranks=[0, 1], shares=[1, 1]),
                Stage(first_block=3, stop_block=6, ranks=[2, 3], shares=[4, 2]),
            ],
        ),
        Replica(num_micro_batches=3, stages=[Stage(first_block=0, stop_block=6, ranks=[4], shares=[1])]),
    ],
    standbys=[7],
)


def test_a_layout_shows_quotas_blocks_and_unequal_shares() -> None:
    assert layout_text(LAYOUT) == "5x 0-2[0,1] 3-5[2:4,3:2] | 3x 0-5[4] | standby 7"


def test_a_layout_shows_which_stages_of_micro_batches_run_elsewhere() -> None:
    routed = Layout(num_blocks=6, replicas=LAYOUT.replicas, standbys=[7])
    routed.routes.add(micro_batch=4, stage=0, replica=1)
    routed.routes.add(micro_batch=6, stage=0)
    assert layout_text(routed) == f"{layout_text(LAYOUT)} | routed 4.0>1,6.0>0"


def test_a_job_names_its_state_and_its_slowest_living_rank() -> None:
    job = Job(job_id="a", state=JOB_STATE_RUNNING, epoch=3, layout=LAYOUT, proportional_bound=0.9)
    job.ranks.append(Rank(rank=0, alive=True, throughput=0.5, address="a-node:7070"))
    job.ranks.append(Rank(rank=1, alive=False, throughput=0.0))
    row = job_row(job)
    assert (row["state"], row["epoch"], row["ranks"], row["ranks_alive"]) == ("running", 3, 2, 1)
    assert row["slowest_throughput"] == 0.5
    assert row["reshapable"]
    assert row["problem"] is None
    assert row["registered_at"] is None


def test_a_job_that_gets_advice_only_and_a_state_of_a_newer_version_are_told_as_they_are() -> None:
    row = job_row(Job(job_id="a", state=JOB_STATE_DEGRADED, cannot_reshape=True, ranks=[Rank(address="a-node:7070")]))
    assert (row["state"], row["reshapable"]) == ("degraded", False)
    assert job_row(Job(job_id="a", state=77))["state"] == "77"  # type: ignore[arg-type]


def test_of_a_job_without_processes_it_is_not_known_whether_it_can_be_reshaped() -> None:
    response = WatchJobResponse(job=Job(job_id="a", state=JOB_STATE_RUNNING, ranks=[Rank(rank=0)]))
    assert job_row(response.job)["reshapable"] is None
    assert WatchLines().line(response).startswith("running, epoch 0")


def test_of_a_job_of_which_nothing_is_heard_it_is_not_known_who_is_alive() -> None:
    job = Job(job_id="a", state=JOB_STATE_STUCK, ranks=[Rank(rank=1, alive=True), Rank(rank=0, alive=True)])
    assert (job_row(job)["ranks_alive"], [row["alive"] for row in rank_rows(job)]) == (2, [True, True])
    job.standing.stuck.reason = STUCK_REASON_UNHEARD
    assert job_row(job)["ranks_alive"] is None
    assert [(row["rank"], row["alive"]) for row in rank_rows(job)] == [(0, None), (1, None)]


def test_what_a_job_cannot_survive_is_a_list_of_what_is_lost_together() -> None:
    row = standing_row(Standing(not_survived=[Loss(units=["node-0"]), Loss(units=["node-1", "rank 3"])]))
    assert row["not_survived"] == [["node-0"], ["node-1", "rank 3"]]


def test_an_open_incident_has_no_end_and_its_times_are_rfc_3339() -> None:
    incident = Incident(
        incident_id="i",
        verdict_id="v",
        notes=["look at the fan"],
        kind=VERDICT_KIND_COMPUTE_SLOW,
        culprits=[Culprit(rank=2, node="n", device="g")],
    )
    incident.opened_at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC))
    row = incident_row(incident)
    assert row["kind"] == "compute_slow"
    assert row["culprits"] == ["rank 2 (n/g)"]
    assert (row["verdict_id"], row["notes"]) == ("v", ["look at the fan"])
    assert (row["opened_at"], row["resolved_at"]) == ("2026-01-02T03:04:05.678Z", None)


def test_rows_of_plans_and_verdicts_are_json() -> None:
    plan = Plan(plan_id="p", state=PLAN_STATE_APPLIED, layout=LAYOUT, actions=[Action(lever="tensor_width")])
    row = json.loads(json.dumps(plan_row(plan)))
    assert (row["state"], row["levers"], row["measured_seconds"]) == ("applied", ["tensor_width"], None)
    verdict = Verdict(verdict_id="v", throughput=0.5, decided_at_unix_seconds=1.5)
    verdict.evidence.add(name="compute seconds against peers", value=2.0, unit="ratio", text="twice as long")
    row = json.loads(json.dumps(verdict_row(verdict)))
    assert (row["throughput"], row["decided_at"]) == (0.5, "1970-01-01T00:00:01.500Z")
    assert row["evidence"] == ["twice as long"]
    assert row["facts"][0]["value"] == 2.0
