"""What a rank is asked, on the wire: every word of a plan and of its decision gets there."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.codec import layout_from_proto
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import LinkProbe, StandIn
from evenkeel.services.scheduler.adapters.ranks.client import RankClient
from evenkeel.services.scheduler.dispatch.protocol import Decision, Probe
from evenkeel.services.scheduler.leadership import Alone

LAYOUT = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=1, num_micro_batches=2)
PLAN = PlanRecord(
    plan_id="plan",
    job_id="job",
    mode=PlanMode.RECOVER,
    epoch=3,
    layout=LAYOUT,
    proposed_at=datetime(2026, 1, 1, tzinfo=UTC),
)
DECISION = Decision(
    from_epoch=1,
    from_layout=LAYOUT,
    sources=(0, 1),
    steps_applied=7,
    stand_ins=(StandIn(owner=1, keeper=0),),
    from_checkpoint=True,
)


@pytest.mark.asyncio
async def test_requests_carry_all_that_they_are_made_of() -> None:
    client = RankClient(
        job_id="job", job_token="t", rank=0, incarnation=2, address="localhost:1", leadership=Alone(term=4)
    )
    asked: list[Any] = []

    async def answer(ask: object, request: Any, timeout_seconds: float) -> Any:
        asked.append(request)
        return (
            pb.ProbeResponse(seconds=[0.5]) if isinstance(request, pb.ProbeRequest) else pb.CommitResponse(state=SELF)
        )

    client._answer = answer  # type: ignore[method-assign, assignment]
    await client.prepare(PLAN, 1.0)
    await client.commit(PLAN, DECISION, 1.0)
    await client.abort(PLAN, 1.0)
    await client.interrupt(5, leave=True, timeout_seconds=1.0)
    await client.probe(Probe(repetitions=3, matrix_size=64), 1.0)
    link = LinkProbe(probe_id=1, partner_rank=2, num_bytes=3, num_ranks=4, repetitions=5)
    await client.probe(Probe(repetitions=5, link=link), 1.0)
    await client.close()
    prepare, commit, abort, interrupt, probe, probed_link = asked
    assert prepare.reshape == commit.reshape
    assert (prepare.reshape.plan_id, prepare.reshape.epoch, prepare.reshape.term) == ("plan", 3, 4)
    assert prepare.reshape.mode == pb.APPLY_MODE_RECOVER
    assert layout_from_proto(prepare.reshape.to_layout) == layout_from_proto(commit.from_layout) == LAYOUT
    assert (commit.from_epoch, list(commit.sources), commit.steps_applied, commit.from_checkpoint) == (
        1,
        [0, 1],
        7,
        True,
    )
    assert [(one.owner, one.keeper) for one in commit.stand_ins] == [(1, 0)]
    assert abort == pb.AbortRequest(job_id="job", plan_id="plan", epoch=3, term=4)
    assert interrupt == pb.InterruptRequest(job_id="job", epoch=5, leave=True, term=4)
    assert probe == pb.ProbeRequest(job_id="job", matrix_size=64, repetitions=3, term=4)
    link_words = pb.LinkProbe(probe_id=1, partner_rank=2, num_bytes=3, num_ranks=4)
    assert probed_link == pb.ProbeRequest(job_id="job", repetitions=5, link=link_words, term=4)


SELF = pb.RankState(rank=0, incarnation=2, phase=pb.RANK_PHASE_TRAINING)
