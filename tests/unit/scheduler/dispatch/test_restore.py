"""Where survivors and copies meet, for every moment at which a rank can die."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import EarlierState, KeptCopy, RankPhase, RankState, StandIn
from evenkeel.services.scheduler.dispatch.agreement import NothingLeftError, recovery_decision
from evenkeel.services.scheduler.dispatch.restore import find_meeting, uncovered_blocks

ONE = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=1, num_micro_batches=8)
MODEL = gpt(6)
KEEPER = {0: 2, 1: 3, 2: 0, 3: 1}


def state(rank: int, steps: int, every: int, *, behind: bool, arrived: bool) -> RankState:
    """A rank as a failure finds it when somebody has applied ``steps`` steps.

    ``behind``: it voted for the last step and did not see the vote pass. ``arrived``: the round that began after the
    last step is complete at this rank.
    """
    safe = (steps - 1) // every * every  # the vote for the last step vouched for this round
    rounds = [safe]
    if behind and safe == steps - 1:
        rounds.append(safe - every)
    if not behind and arrived and steps % every == 0:
        rounds.append(steps)
    return RankState(
        rank=rank,
        incarnation=0,
        phase=RankPhase.PARKED,
        epoch=0,
        steps_applied=steps - 1 if behind else steps,
        voted=behind,
        held_epochs=(0,),
        earlier=tuple(EarlierState(epoch=0, steps_applied=one) for one in rounds if one >= 0),
        copies=tuple(
            KeptCopy(owner=owner, epoch=0, steps_applied=one)
            for owner, keeper in KEEPER.items()
            if keeper == rank
            for one in rounds
            if one >= 0
        ),
    )


@given(data=st.data(), steps=st.integers(1, 40), every=st.integers(1, 7))
def test_whoever_dies_whenever_there_is_a_step_at_which_nothing_is_missing(
    data: st.DataObject, steps: int, every: int
) -> None:
    dead = data.draw(st.sets(st.sampled_from(ONE.ranks), min_size=1, max_size=3), label="dead")
    assume(not any(KEEPER[rank] in dead for rank in dead))
    alive = [rank for rank in ONE.ranks if rank not in dead]
    behind = data.draw(st.sets(st.sampled_from(alive), max_size=len(alive) - 1), label="behind")
    arrived = set() if behind else data.draw(st.sets(st.sampled_from(alive)), label="arrived")
    states = {r: state(r, steps, every, behind=r in behind, arrived=r in arrived) for r in alive}

    meeting = find_meeting(states, epoch=0, layout=ONE, holders=alive, model=MODEL)

    assert meeting is not None
    assert meeting.lost == ()
    assert {one.owner for one in meeting.stand_ins} == dead
    assert meeting.steps_applied >= steps - every, "no more than a round is run again"
    for rank in alive:
        there = {one.steps_applied for one in states[rank].earlier}
        stays = states[rank].steps_applied == meeting.steps_applied
        steps_once = states[rank].voted and states[rank].steps_applied + 1 == meeting.steps_applied
        assert stays or steps_once or meeting.steps_applied in there


def answers(**changes: object) -> dict[int, RankState]:
    """Rank 3 died at step 12 and nobody kept anything, unless ``changes`` say so."""
    return {
        r: replace(
            RankState(rank=r, incarnation=0, phase=RankPhase.PARKED, epoch=0, steps_applied=12, held_epochs=(0,)),
            **changes,
        )
        for r in (0, 1, 2)
    }


def decide(states: dict[int, RankState]):
    to_layout = uniform_layout(num_blocks=8, tensor=1, pipeline=3, data=1, num_micro_batches=8)
    return recovery_decision(states, layouts={0: ONE}, to_layout=to_layout, model=MODEL)


def test_a_copy_on_a_peer_comes_before_disk_and_names_who_is_read() -> None:
    states = answers(checkpoint_steps=(10,))
    states[1] = replace(states[1], copies=(KeptCopy(owner=3, epoch=0, steps_applied=12),))
    decision = decide(states)
    assert (decision.stand_ins, decision.from_checkpoint) == ((StandIn(owner=3, keeper=1),), False)
    assert (decision.steps_applied, decision.sources) == (12, (0, 1, 2))


def test_a_newer_checkpoint_comes_before_older_copies() -> None:
    states = answers(checkpoint_steps=(10,), earlier=(EarlierState(epoch=0, steps_applied=6),))
    states[1] = replace(states[1], copies=(KeptCopy(owner=3, epoch=0, steps_applied=6),))
    assert decide(states).from_checkpoint
    same = decide({r: replace(s, checkpoint_steps=(6,)) for r, s in states.items()})
    assert (same.from_checkpoint, same.steps_applied) == (False, 6)


@pytest.mark.parametrize("holders", [(0, 2), (1, 3)])
def test_a_block_that_cannot_be_cut_is_whole_on_each_of_its_tensor_ranks(holders: tuple[int, ...]) -> None:
    uncut, halved = (replace(MODEL, blocks=(replace(MODEL.blocks[0], max_width=width),) * 8) for width in (1, 2))
    assert uncovered_blocks(uncut, ONE, holders) == ()
    assert uncovered_blocks(halved, ONE, holders) == tuple(range(8))


def test_nobody_goes_back_further_than_is_needed() -> None:
    states = answers(earlier=(EarlierState(epoch=0, steps_applied=6),))
    copies = tuple(KeptCopy(owner=3, epoch=0, steps_applied=steps) for steps in (6, 12))
    states[1] = replace(states[1], copies=copies)
    assert decide(states).steps_applied == 12


def test_a_copy_of_another_epoch_or_step_is_not_used() -> None:
    states = answers()
    states[1] = replace(
        states[1],
        copies=(KeptCopy(owner=3, epoch=1, steps_applied=12), KeptCopy(owner=3, epoch=0, steps_applied=11)),
    )
    with pytest.raises(NothingLeftError, match="no peer keeps a copy"):
        decide(states)


def test_a_second_death_before_the_first_vote_goes_back_to_the_epoch_whose_copies_are_whole() -> None:
    """Rank 3 was replaced and restored from its copy; rank 0 dies before the new epoch's copies have arrived."""
    kept = {1: KeptCopy(owner=3, epoch=0, steps_applied=12), 2: KeptCopy(owner=0, epoch=0, steps_applied=12)}
    states = {
        r: RankState(
            rank=r,
            incarnation=0,
            phase=RankPhase.PARKED,
            epoch=1,
            steps_applied=12,
            held_epochs=(0, 1),
            earlier=(EarlierState(epoch=0, steps_applied=12),),
            copies=(kept[r],),
        )
        for r in (1, 2)
    }
    states[3] = RankState(rank=3, incarnation=1, phase=RankPhase.PARKED, epoch=1, steps_applied=12, held_epochs=(1,))
    states[0] = RankState(rank=0, incarnation=1, phase=RankPhase.JOINING)
    decision = recovery_decision(states, layouts={0: ONE, 1: ONE}, to_layout=ONE, model=MODEL)
    assert (decision.from_epoch, decision.steps_applied, decision.sources) == (0, 12, (1, 2))
    assert decision.stand_ins == (StandIn(owner=0, keeper=2), StandIn(owner=3, keeper=1))


def test_disk_means_the_newest_checkpoint_that_every_rank_of_the_plan_sees() -> None:
    states = answers(checkpoint_steps=(5, 10))
    states[2] = replace(states[2], checkpoint_steps=(5, 10, 15))
    states[0] = replace(states[0], checkpoint_steps=(5,))
    decision = decide(states)
    assert (decision.from_checkpoint, decision.steps_applied, decision.sources) == (True, 5, ())


def test_before_the_first_step_the_seed_is_enough_where_somebody_knows_that_there_was_none() -> None:
    states = answers(steps_applied=0)
    states[2] = RankState(rank=2, incarnation=1, phase=RankPhase.JOINING)
    decision = decide(states)
    assert (decision.from_checkpoint, decision.steps_applied, decision.sources) == (True, 0, ())
    with pytest.raises(NothingLeftError):
        decide({r: replace(one, steps_applied=len(one.held_epochs)) for r, one in states.items()})
    with pytest.raises(NothingLeftError):
        decide({r: RankState(rank=r, incarnation=1, phase=RankPhase.JOINING) for r in (0, 1, 2)})


def test_when_everybody_is_new_disk_is_enough() -> None:
    states = {r: RankState(rank=r, incarnation=1, phase=RankPhase.JOINING, checkpoint_steps=(10,)) for r in (0, 1, 2)}
    assert decide(states).from_checkpoint
    states[1] = replace(states[1], checkpoint_steps=())
    with pytest.raises(NothingLeftError, match="from: no survivor holds any epoch, no peer"):
        decide(states)
