"""A job whose loop nobody can reshape: what its state asks for, and what a person is told."""

from datetime import UTC, datetime, timedelta

import pytest

from evenkeel.history.records import CulpritRecord, IncidentEventRecord, JobRecord, RankRecord, VerdictRecord
from evenkeel.history.vocabulary import IncidentEventKind, JobState, VerdictKind
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.scheduler.domain.advice import Advice, advice_on
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed, new_job
from evenkeel.services.scheduler.domain.replacements import in_their_places, on_rank_registered
from evenkeel.services.scheduler.domain.transitions import on_verdict

HOME = uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=4, num_micro_batches=4)
MODEL = ModelSpec(blocks=(BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0),))
START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(hours=1)


def registration(rank: int, incarnation: int = 0, *, can_reshape: bool = False) -> RankRecord:
    return RankRecord(
        job_id="job",
        rank=rank,
        incarnation=incarnation,
        node="n",
        device=f"gpu-{rank}",
        address=f"127.0.0.1:{5000 + 10 * rank + incarnation}",
        process_id=1,
        registered_at=START,
        can_reshape=can_reshape,
    )


def plain_job(*engine_ranks: int) -> JobKnowledge:
    job = new_job(JobRecord(job_id="job", name="", model=MODEL, layout=HOME, registered_at=START, job_token="x" * 16))
    for rank in HOME.ranks:
        job = on_rank_registered(job, registration(rank, can_reshape=rank in engine_ranks))
    return job


def verdict(kind: str, *ranks: int, incarnation: int = 0, throughput: float = 0.0) -> VerdictRecord:
    return VerdictRecord(
        verdict_id=f"{kind}-{ranks}-{incarnation}-{throughput}",
        job_id="job",
        kind=kind,
        culprits=tuple(CulpritRecord(rank=r, incarnation=incarnation, node="n", device=f"gpu-{r}") for r in ranks),
        throughput=throughput,
        throughput_margin=0.01,
        confidence=0.99,
        first_iteration=3,
        decided_iteration=5,
        decided_at=START,
    )


def advice(job: JobKnowledge) -> Advice | None:
    return advice_on(job, job.situation(TransitionCosts()), 0.02)


def test_one_rank_without_the_engine_makes_a_job_that_cannot_be_reshaped() -> None:
    assert not plain_job(0, 1, 2).can_reshape
    assert plain_job(0, 1, 2, 3).can_reshape


def test_a_death_asks_for_advice_and_the_job_is_degraded_until_a_replacement_is_in_its_place() -> None:
    dead = on_verdict(plain_job(), verdict(VerdictKind.FAIL_STOP, 2)).job
    assert (dead.need, dead.state, dead.lost) == (PlanNeed.ADVICE, JobState.DEGRADED, (2,))
    registered, over = in_their_places(on_rank_registered(dead, registration(2, 1)), NOW)
    assert (registered.state, over) == (JobState.DEGRADED, []), "nobody said yet that it trains"
    back = on_verdict(registered, verdict(VerdictKind.REJOINED, 2, incarnation=1))
    assert (back.job.need, back.job.state, back.job.incidents) == (PlanNeed.NONE, JobState.RUNNING, ())
    (resolved,) = back.records
    assert isinstance(resolved, IncidentEventRecord)
    assert resolved.kind is IncidentEventKind.RESOLVED


def test_a_replacement_that_is_announced_before_it_registers_ends_the_incident_when_it_registers() -> None:
    dead = on_verdict(plain_job(), verdict(VerdictKind.FAIL_STOP, 2)).job
    announced = on_verdict(dead, verdict(VerdictKind.REJOINED, 2, incarnation=1)).job
    assert announced.state is JobState.DEGRADED
    back, (resolved,) = in_their_places(on_rank_registered(announced, registration(2, 1)), NOW)
    assert (back.state, resolved.at) == (JobState.RUNNING, NOW)


def test_a_death_is_told_with_what_a_restart_without_the_rank_brings() -> None:
    found = advice(on_verdict(plain_job(), verdict(VerdictKind.FAIL_STOP, 2)).job)
    assert found is not None
    assert found.incident_id == "incident-fail_stop-(2,)-0-0.0"
    assert found.text.startswith("Rank 2 (gpu-2 of n) is gone, and this training loop has no elastic engine")
    assert "Restart it without rank 2 (3 of 4 devices, 75 % of the healthy speed)" in found.text
    assert "or with another device in place of gpu-2 of n" in found.text


def test_when_everybody_is_gone_nobody_is_left_to_restart_with() -> None:
    found = advice(on_verdict(plain_job(), verdict(VerdictKind.FAIL_STOP, 0, 1, 2, 3)).job)
    assert found is not None
    assert "without" not in found.text
    assert "Restart it with all of its ranks" in found.text


def test_a_slow_rank_is_told_with_what_another_device_brings() -> None:
    job = on_verdict(plain_job(), verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=0.5)).job
    assert (job.need, job.state) == (PlanNeed.ADVICE, JobState.RUNNING)
    found = advice(job)
    assert found is not None
    assert "computes at 0.50 of healthy speed, so the job runs at 50 % of its own" in found.text
    assert "another device in place of gpu-1 of n" in found.text
    assert "or without rank 1 (3 of 4 devices, 75 % of the healthy speed)" in found.text


def test_a_rank_that_is_a_little_slow_is_not_worth_leaving_out() -> None:
    found = advice(on_verdict(plain_job(), verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=0.9)).job)
    assert found is not None
    assert "without rank" not in found.text


@pytest.mark.parametrize("throughput", [0.985, 1.0])
def test_nobody_is_bothered_with_what_is_not_worth_a_restart(throughput: float) -> None:
    assert advice(on_verdict(plain_job(), verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=throughput)).job) is None


def test_the_same_state_has_the_same_advice_and_another_state_another_one() -> None:
    job = on_verdict(plain_job(), verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=0.5)).job
    slower = on_verdict(job, verdict(VerdictKind.COMPUTE_SLOW, 1, throughput=0.3)).job
    first, again, other = advice(job), advice(job), advice(slower)
    assert first == again
    assert first is not None
    assert other is not None
    assert (other.incident_id, other.advice_id == first.advice_id) == (first.incident_id, False)
