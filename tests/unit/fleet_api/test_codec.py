from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.detector.v1 import detector_pb2
from evenkeel.history.records import CulpritRecord, EvidenceRecord, JobRecord, JobStatus, VerdictRecord
from evenkeel.history.vocabulary import JobState, PlanState, VerdictKind
from evenkeel.layouts.codec import number_of
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.codec import (
    job_status_to_proto,
    job_to_proto,
    ranks_from_request,
    verdict_from_proto,
    verdict_kind_from_proto,
    verdict_to_proto,
)
from evenkeel.services.scheduler.domain.job_state import new_job
from evenkeel.services.scheduler.domain.standing import Standing
from evenkeel.services.scheduler.serving.news import JobView

FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**31 - 1)
# Microseconds are what the wire's float seconds keep of a time in this century.
MOMENTS = st.integers(946684800_000, 4102444800_000).map(lambda ms: datetime.fromtimestamp(ms / 1000, tz=UTC))
VERDICTS = st.builds(
    VerdictRecord,
    verdict_id=st.text(),
    job_id=st.text(),
    kind=st.sampled_from(VerdictKind),
    culprits=st.lists(
        st.builds(CulpritRecord, rank=COUNTS, incarnation=COUNTS, node=st.text(), device=st.text()), max_size=3
    ).map(tuple),
    throughput=FINITE,
    throughput_margin=FINITE,
    confidence=FINITE,
    first_iteration=st.integers(0, 2**62),
    decided_iteration=st.integers(0, 2**62),
    decided_at=MOMENTS,
    evidence=st.lists(
        st.builds(EvidenceRecord, name=st.text(), value=FINITE, unit=st.text(), text=st.text()), max_size=2
    ).map(tuple),
)


@given(VERDICTS)
def test_any_verdict_survives_the_wire(verdict: VerdictRecord) -> None:
    message = detector_pb2.Verdict.FromString(verdict_to_proto(verdict).SerializeToString())

    assert verdict_from_proto(message) == verdict


def test_the_stored_words_are_those_of_the_contract() -> None:
    def words(names: Iterable[str], prefix: str) -> set[str]:
        return {name.removeprefix(prefix).lower() for name in names} - {"unspecified"}

    assert set(VerdictKind) == words(detector_pb2.VerdictKind.keys(), "VERDICT_KIND_")
    assert set(JobState) == words(pb.JobState.keys(), "JOB_STATE_")
    assert set(PlanState) == words(pb.PlanState.keys(), "PLAN_STATE_")


def test_a_kind_of_tomorrow_passes_without_an_error() -> None:
    assert verdict_kind_from_proto(99) == "kind_99"
    assert number_of(detector_pb2.VerdictKind.DESCRIPTOR, "cosmic_ray") == detector_pb2.VERDICT_KIND_UNSPECIFIED


def test_what_is_not_survived_is_told_unit_by_unit() -> None:
    record = JobRecord(
        job_id="a",
        name="n",
        model=ModelSpec(blocks=()),
        layout=uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=2, num_micro_batches=2),
        registered_at=datetime(2026, 1, 2, tzinfo=UTC),
        job_token="token",
    )
    standing = Standing(training=(0, 1), num_ranks=2, not_survived=(("n0",), ("n1", "rank 3")))
    told = job_to_proto(JobView(new_job(record), standing)).standing
    assert [list(loss.units) for loss in told.not_survived] == [["n0"], ["n1", "rank 3"]]
    assert told.summary.endswith("cannot survive the loss of n0, n1 + rank 3")


@pytest.mark.parametrize("cannot_reshape", [False, True])
def test_a_rank_whose_loop_cannot_be_reshaped_is_known_as_such(cannot_reshape: bool) -> None:
    request = pb.RegisterRanksRequest(job_id="a", processes=[pb.RankProcess(cannot_reshape=cannot_reshape)])
    (record,) = ranks_from_request(request, datetime.now(UTC))
    assert record.can_reshape is not cannot_reshape
    status = JobStatus(
        job_id="a",
        tenant="default",
        name="",
        model=ModelSpec(blocks=(BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0),)),
        layout=uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=1, num_micro_batches=1),
        epoch=0,
        state=JobState.DEGRADED,
        num_devices=1,
        registered_at=datetime.now(UTC),
        ranks=(record,),
    )
    job = job_status_to_proto(status)
    assert (job.state, job.cannot_reshape) == (pb.JOB_STATE_DEGRADED, cannot_reshape)
