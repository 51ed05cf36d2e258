"""What every screen says of a job's ranks, case by case."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from evenkeel.history.records import JobRecord, RankExitRecord
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.exits import not_started
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, new_job
from evenkeel.services.scheduler.domain.parts import RankInfo
from evenkeel.services.scheduler.domain.standing import Standing, standing
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BLOCK = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0)


def job(*, standbys: tuple[int, ...] = ()) -> JobKnowledge:
    """Four ranks in a layout, all registered, and standbys."""
    layout = replace(uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=2, num_micro_batches=4), standbys=standbys)
    record = JobRecord(
        job_id="j", name="j", model=ModelSpec(blocks=(BLOCK,) * 2), layout=layout, registered_at=AT, job_token="t"
    )
    known = new_job(record)
    return replace(known, ranks={rank: replace(info, address="h:1") for rank, info in known.ranks.items()})


EACH_KEEPS_ITS_NEIGHBOUR = {0: (1,), 1: (0,), 2: (3,), 3: (2,)}
"""No two ranks of the four have all of a slice."""


def states(
    phases: Mapping[int, RankPhase],
    *,
    epoch: int = 0,
    incarnations: Mapping[int, int] | None = None,
    keepers: Mapping[int, tuple[int, ...]] = EACH_KEEPS_ITS_NEIGHBOUR,
) -> dict[int, RankState]:
    return {
        rank: RankState(
            rank=rank,
            incarnation=(incarnations or {}).get(rank, 0),
            phase=phase,
            epoch=epoch,
            keeper_of=keepers.get(rank, ()),
        )
        for rank, phase in phases.items()
    }


ALL_TRAIN = dict.fromkeys(range(4), RankPhase.TRAINING)


def without(known: JobKnowledge, *ranks: int) -> JobKnowledge:
    dead = {rank: replace(known.ranks[rank], throughput=0.0) for rank in ranks}
    return replace(known, ranks={**known.ranks, **dead})


@pytest.mark.parametrize(
    ("known", "said", "expected"),
    [
        pytest.param(job(), states(ALL_TRAIN), "training 4 of 4", id="all train"),
        pytest.param(
            job(),
            states({0: RankPhase.TRAINING}),
            "training 1 of 4, idle 3 (ranks 1-3: nothing heard from its controller)",
            id="a living process is no training one",
        ),
        pytest.param(
            job(),
            states(ALL_TRAIN, epoch=3),
            "training 0 of 4, idle 4 (ranks 0-3: is in epoch 3, the layout in force in 0)",
            id="another epoch",
        ),
        pytest.param(
            job(),
            states(ALL_TRAIN, incarnations={2: 1}),
            "training 3 of 4, idle 1 (rank 2: nothing heard from its controller)",
            id="the word of another process of the rank",
        ),
        pytest.param(
            without(job(), 3),
            states({**ALL_TRAIN, 0: RankPhase.PARKED, 2: RankPhase.RESHAPING}),
            "training 1 of 4, idle 1 (rank 0: waits for a plan without rank 3), "
            "idle 1 (rank 2: switches to another layout), gone 1 (rank 3)",
            id="a death",
        ),
        pytest.param(
            job(standbys=(4, 5)),
            states({**ALL_TRAIN, 4: RankPhase.JOINING, 5: RankPhase.JOINING}),
            "training 4 of 6, idle 2 (ranks 4-5: standby)",
            id="standbys",
        ),
        pytest.param(
            replace(without(job(), 1), newcomers={1: RankInfo(rank=1, incarnation=1, address="h:2")}),
            states({**ALL_TRAIN, 1: RankPhase.JOINING}, incarnations={1: 1}),
            "training 3 of 4, joining 1 (rank 1)",
            id="a replacement",
        ),
        pytest.param(
            replace(job(), ranks={**job().ranks, 3: RankInfo(rank=3)}),
            states({0: RankPhase.TRAINING, 1: RankPhase.TRAINING, 2: RankPhase.TRAINING}),
            "training 3 of 4, idle 1 (rank 3: has not registered)",
            id="not there yet",
        ),
        pytest.param(
            job(), states({**ALL_TRAIN, 3: RankPhase.FINISHED}), "training 3 of 4", id="who is done is not idle"
        ),
        pytest.param(
            replace(
                without(job(), 0, 1, 2, 3), stuck=Stuck(reason=StuckReason.NO_LAYOUT, detail="nobody left", since=AT)
            ),
            {},
            "training 0 of 4, gone 4 (ranks 0-3), stuck since 03:04:05 UTC: nobody left; to free it: "
            "start its ranks again, or others in their places",
            id="stuck",
        ),
        pytest.param(
            replace(job(), stuck=Stuck(reason=StuckReason.UNHEARD, detail="silent", since=AT)),
            states({**ALL_TRAIN, 3: RankPhase.FINISHED}),
            "training 0 of 4, idle 3 (ranks 0-2: nothing heard from its controller), stuck since 03:04:05 UTC: silent; "
            "to free it: start its ranks again, or mend the way to them; if it is over, `evenkeel jobs finish` it",
            id="unheard, but for one that is done",
        ),
        pytest.param(replace(job(), finished=True), states(ALL_TRAIN), "finished", id="finished"),
    ],
)
def test_a_job_is_told_as_it_is(known: JobKnowledge, said: dict[int, RankState], expected: str) -> None:
    assert standing(known, said).summary == expected


def test_a_rank_that_the_layout_left_out_says_why() -> None:
    home = job()
    smaller = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=4)
    known = replace(home, layouts={**home.layouts, 1: smaller}, epoch=1)
    known = known.with_rank(replace(known.ranks[2], throughput=0.4))
    said = {
        **states(dict.fromkeys(smaller.ranks, RankPhase.TRAINING), epoch=1),
        **states({2: RankPhase.JOINING, 3: RankPhase.JOINING}),
    }
    assert standing(known, said) == Standing(
        training=smaller.ranks,
        num_ranks=4,
        idle=(("left out at 0.40 of healthy speed", (2,)), ("the layout does without it", (3,))),
    )


def on_nodes(known: JobKnowledge, *nodes: str) -> JobKnowledge:
    return replace(known, ranks={rank: replace(info, node=nodes[rank]) for rank, info in known.ranks.items()})


NOBODY_KEEPS = states(ALL_TRAIN, keepers={})
SPLIT = on_nodes(job(), "n0", "n0", "n1", "n1")
LARGER_PAIRS = (("n0", "rank 2"), ("n0", "rank 3"), ("n1", "rank 0"), ("n1", "rank 1"))


@pytest.mark.parametrize(
    ("known", "said", "expected"),
    [
        pytest.param(SPLIT, states(ALL_TRAIN), (), id="with copies nothing"),
        pytest.param(
            SPLIT,
            NOBODY_KEEPS,
            (("rank 0", "rank 2"), ("rank 1", "rank 3"), *LARGER_PAIRS),
            id="without copies two of the same stage",
        ),
        pytest.param(
            on_nodes(job(), "n0", "n1", "n0", "n1"),
            NOBODY_KEEPS,
            (("n0",), ("n1",), ("rank 0", "rank 2"), ("rank 1", "rank 3")),
            id="a node has a stage of both replicas",
        ),
        pytest.param(SPLIT, NOBODY_KEEPS | states({3: RankPhase.JOINING}), (), id="while ranks change over"),
        pytest.param(
            SPLIT.with_rank(replace(SPLIT.ranks[0], can_reshape=False)), NOBODY_KEEPS, (), id="nobody reshapes it"
        ),
        pytest.param(replace(SPLIT, finished=True), NOBODY_KEEPS, (), id="finished"),
    ],
)
def test_what_cannot_be_survived_is_listed(
    known: JobKnowledge, said: dict[int, RankState], expected: tuple[tuple[str, ...], ...]
) -> None:
    assert standing(known, said).not_survived == expected


def test_the_summary_names_the_first_losses_and_counts_the_rest() -> None:
    assert standing(job(), NOBODY_KEEPS).summary == (
        "training 4 of 4, without a checkpoint cannot survive the loss of rank 0 + rank 2, rank 1 + rank 3"
    )
    many = Standing(training=(0,), num_ranks=1, not_survived=tuple((f"n{number}",) for number in range(5)))
    assert many.summary.endswith("the loss of n0, n1, n2 and 2 more")


def test_every_rank_is_in_one_list_whatever_it_says() -> None:
    for phase in RankPhase:
        for known in (job(), without(job(), 0)):
            found = standing(known, states(dict.fromkeys(range(4), phase)))
            listed = [*found.training, *found.joining, *found.gone, *(r for _, ranks in found.idle for r in ranks)]
            wanted = [0, 1, 2, 3] if phase is not RankPhase.FINISHED else list(found.gone)
            assert sorted(listed) == wanted


def exit_of(rank: int, **how: object) -> RankExitRecord:
    known: dict[str, object] = {"job_id": "j", "rank": rank, "incarnation": 0, "code": 1, "at": AT}
    return RankExitRecord(**{**known, **how})  # type: ignore[arg-type]


def unborn() -> JobKnowledge:
    known = job()
    return replace(known, ranks={rank: RankInfo(rank=rank) for rank in known.ranks})


def test_a_job_none_of_whose_processes_registered_is_stuck_when_all_have_ended() -> None:
    some = {(rank, 0): exit_of(rank, last_line="ModuleNotFoundError: No module named 'x'") for rank in range(3)}
    assert not_started(replace(unborn(), exits=some), AT).stuck is None
    everybody = {**some, (3, 0): exit_of(3, signal=9, code=0)}
    stuck = not_started(replace(unborn(), exits=everybody), AT).stuck
    assert stuck is not None
    assert stuck.reason is StuckReason.NOT_STARTED
    assert "ModuleNotFoundError: No module named 'x'; killed by signal 9" in stuck.detail


@pytest.mark.parametrize("known", [job(), replace(unborn(), finished=True), replace(unborn(), epoch=1)])
def test_a_deadline_says_nothing_of_a_job_that_has_begun_or_ended(known: JobKnowledge) -> None:
    assert not_started(known, AT, deadline_seconds=120.0) == known


def test_a_job_that_nobody_came_for_is_stuck_at_the_deadline() -> None:
    late = not_started(unborn(), AT, deadline_seconds=120.0)
    assert late.stuck == Stuck(
        reason=StuckReason.NOT_STARTED, detail="none of its processes has registered in 120 s", since=AT
    )
    assert "start its processes" in standing(late, {}).summary
