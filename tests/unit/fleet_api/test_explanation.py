import dataclasses
from datetime import UTC, datetime

import pytest

from evenkeel.history.records import (
    ActionRecord,
    AlternativeRecord,
    CulpritRecord,
    IncidentState,
    PlanRecord,
    PlanStatus,
)
from evenkeel.history.vocabulary import PlanMode, PlanState, VerdictKind
from evenkeel.layouts.layout import uniform_layout
from evenkeel.services.scheduler.adapters.api.explanation import explain_plan

AT = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
INCIDENT = IncidentState(
    incident_id="i1",
    job_id="llama",
    verdict_id="v1",
    kind=VerdictKind.COMPUTE_SLOW,
    culprits=(CulpritRecord(rank=5, incarnation=0, node="node-b", device="gpu1"),),
    first_iteration=3600,
    throughput=0.5,
    lost_seconds=35.0,
    opened_at=AT,
    resolved_at=None,
    plan_ids=("p1",),
)
PLAN = PlanRecord(
    plan_id="p1",
    job_id="llama",
    incident_id="i1",
    mode=PlanMode.BOUNDARY,
    epoch=1,
    layout=uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=8),
    actions=(ActionRecord(lever="tensor_width", description="shares 1:1 to 2:1", gain_seconds=0.65),),
    alternatives=(AlternativeRecord(name="micro_batch_quota", predicted_seconds=1.5, reason="0.25 s slower."),),
    idle_seconds=1.9,
    predicted_seconds=1.25,
    cost_seconds=1.95,
    proportional_bound=0.9375,
    reason="half the width for half the speed.",
    solve_seconds=0.004,
    proposed_at=AT,
)
STATUS = PlanStatus(
    plan=PLAN,
    state=PlanState.MEASURED,
    at=AT,
    first_iteration=3604,
    measured_seconds=1.29,
    decision=None,
    detail="",
)


def test_a_measured_plan_tells_cause_decision_promise_rivals_outcome_and_loss() -> None:
    assert explain_plan(STATUS, INCIDENT) == (
        "Since iteration 3600 rank 5 (gpu1 of node-b) is computing at 0.50 of healthy speed (incident i1). "
        "Plan p1 leads job llama to epoch 1 at an iteration boundary by tensor_width: shares 1:1 to 2:1 "
        "(saves 0.650 s per iteration). Why: half the width for half the speed. "
        "Predicted: 1.250 s per iteration instead of 1.900 s, for 1.95 s of training, won back after 3 iterations. "
        "No plan can do better than 93.8% of the healthy speed with these devices. "
        "It beat micro_batch_quota at 1.500 s (0.25 s slower) (solved in 4.0 ms). "
        "Measured since iteration 3604: 1.290 s per iteration, 3.2% slower than predicted. "
        "The incident has cost 35.0 s of training so far."
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": PlanState.PROPOSED}, "not every rank has accepted it yet"),
        ({"state": PlanState.COMMITTED}, "the ranks are changing over"),
        ({"state": PlanState.APPLIED}, "Every rank runs it since iteration 3604; its effect is not measured yet."),
        ({"state": PlanState.ABORTED, "detail": "rank 3 died."}, "given up before any rank changed: rank 3 died."),
        ({"state": PlanState.ABORTED}, "It was given up before any rank changed."),
        ({"state": PlanState.ABORTED, "decision": {}}, "It was given up after it was decided."),
        ({"measured_seconds": 1.25}, "1.250 s per iteration, as predicted."),
        ({"measured_seconds": 1.0}, "20.0% faster than predicted."),
    ],
)
def test_each_state_has_its_own_ending(change: dict[str, object], words: str) -> None:
    status = dataclasses.replace(STATUS, **change)  # type: ignore[arg-type]

    assert words in explain_plan(status, INCIDENT)


def test_a_plan_for_the_dead_says_that_there_was_no_way_around_it() -> None:
    plan = dataclasses.replace(PLAN, mode=PlanMode.RECOVER, idle_seconds=0.0, alternatives=())
    incident = dataclasses.replace(INCIDENT, kind=VerdictKind.FAIL_STOP, throughput=0.0)

    text = explain_plan(dataclasses.replace(STATUS, plan=plan), incident)

    assert "rank 5 (gpu1 of node-b) is dead" in text
    assert "doing nothing would have stopped the job" in text
    assert "won back" not in text
    assert "There was no other layout to choose from" in text


def test_a_kind_of_tomorrow_is_told_in_its_own_word() -> None:
    text = explain_plan(STATUS, dataclasses.replace(INCIDENT, kind="cosmic_ray"))

    assert "rank 5 (gpu1 of node-b): cosmic ray (incident i1)" in text


def test_a_plan_without_an_incident_and_a_crowd_of_rivals_stays_short() -> None:
    rivals = tuple(AlternativeRecord(name=f"a{n}", predicted_seconds=2.0, reason="slower") for n in range(40))

    text = explain_plan(dataclasses.replace(STATUS, plan=dataclasses.replace(PLAN, alternatives=rivals)), None)

    assert text.startswith("Plan p1")
    assert "and 35 more" in text
    assert "a5" not in text


def test_a_plan_made_before_anything_was_known_of_the_speed_promises_nothing() -> None:
    unknown = dataclasses.replace(
        PLAN,
        predicted_seconds=0.0,
        idle_seconds=0.0,
        alternatives=(dataclasses.replace(PLAN.alternatives[0], predicted_seconds=0.0),),
    )

    text = explain_plan(dataclasses.replace(STATUS, plan=unknown), INCIDENT)

    assert "Nothing was predicted: too little was known of the job's speed." in text
    assert "It beat micro_batch_quota (0.25 s slower)" in text
    assert "Measured since iteration 3604: 1.290 s per iteration." in text
    assert "0.000" not in text


def test_a_plan_that_is_only_advice_says_that_no_rank_was_told_and_what_to_do() -> None:
    advised = dataclasses.replace(
        STATUS,
        state=PlanState.ADVISED,
        measured_seconds=None,
        first_iteration=None,
        detail="Restart it without rank 5.",
    )
    text = explain_plan(advised, INCIDENT)
    assert "Plan p1 would lead job llama to epoch 1" in text
    assert "No rank was told of it, it is advice: Restart it without rank 5. The incident has cost" in text
