from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import EarlierState, KeptCopy, RankPhase, RankState
from evenkeel.planning.repair import repaired
from evenkeel.services.scheduler.dispatch.agreement import (
    NoAgreementError,
    RecoveryNeededError,
    boundary_decision,
    recovery_decision,
)

HOME = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=2, num_micro_batches=16)
MODEL = gpt(6)


def parked(rank: int, steps: int = 10, *, voted: bool = False, held: tuple[int, ...] = (0,), epoch: int = 0):
    return RankState(
        rank=rank,
        incarnation=0,
        phase=RankPhase.PARKED,
        epoch=epoch,
        steps_applied=steps,
        voted=voted,
        held_epochs=held,
    )


def without(*dead: int):
    layout = repaired(HOME, [rank for rank in HOME.ranks if rank not in dead])
    assert layout is not None
    return layout


def recovery(states, layouts=None, to_layout=None):
    return recovery_decision(
        {state.rank: state for state in states},
        layouts=layouts or {0: HOME},
        to_layout=to_layout or without(3),
        model=MODEL,
    )


def test_survivors_at_the_same_step_run_its_iteration_again():
    decision = recovery([parked(rank) for rank in HOME.ranks if rank != 3])
    assert (decision.steps_applied, decision.from_epoch, decision.from_layout) == (10, 0, HOME)
    assert decision.sources == (0, 1, 2, 4, 5, 6, 7)


@given(st.sets(st.sampled_from([0, 1, 2, 4, 5, 6, 7]), min_size=1, max_size=6))
def test_if_somebody_stepped_everybody_who_voted_steps_too(ahead):
    states = [parked(r, 11 if r in ahead else 10, voted=r not in ahead) for r in HOME.ranks if r != 3]
    assert recovery(states).steps_applied == 11


def test_a_step_that_all_voted_for_and_nobody_applied_is_run_again():
    assert recovery([parked(r, voted=True) for r in HOME.ranks if r != 3]).steps_applied == 10


def test_a_rank_one_step_behind_that_has_not_voted_is_a_contradiction():
    states = [parked(r, 11 if r else 10) for r in HOME.ranks if r != 3]
    with pytest.raises(NoAgreementError, match=r"step 10, but ranks \{0: 10\} .*: their parameters would differ, no"):
        recovery(states)


def test_a_rank_two_steps_behind_is_a_contradiction_even_if_it_voted():
    states = [parked(r, 12 if r else 10, voted=not r) for r in HOME.ranks if r != 3]
    with pytest.raises(NoAgreementError, match="ranks"):
        recovery(states)


def test_the_newest_epoch_that_all_its_survivors_hold_is_read():
    first = without(3)
    everywhere = [parked(r, held=(0, 1), epoch=1) for r in first.ranks if r != 6]
    assert recovery(everywhere, {0: HOME, 1: first}, without(3, 6)).from_epoch == 1
    halfway = [parked(r, held=(0, 1) if r < 2 else (0,), epoch=0) for r in first.ranks if r != 6]
    assert recovery(halfway, {0: HOME, 1: first}, without(3, 6)).from_epoch == 0


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_plan_that_went_back_and_failed_half_way_leaves_a_step_at_which_all_can_meet(lets_go: bool):
    """Epoch 1 was entered at step 10, and the only ranks with blocks 4 to 7 died before its copies were there. Some
    ranks have gone back to step 9 of epoch 0, where there are copies, as the plan after that said; others have not."""
    first = without(3)
    copies = {0: KeptCopy(owner=6, epoch=0, steps_applied=9), 1: KeptCopy(owner=7, epoch=0, steps_applied=9)}
    copies |= {4: KeptCopy(owner=2, epoch=0, steps_applied=9), 5: KeptCopy(owner=3, epoch=0, steps_applied=9)}
    states = [
        replace(
            parked(r, 10, held=(0, 1), epoch=1),
            copies=(copies[r],),
            earlier=(EarlierState(epoch=0, steps_applied=9),),
        )
        for r in (0, 1, 4, 5)
    ]
    joiners = [RankState(rank=r, incarnation=1, phase=RankPhase.JOINING) for r in (2, 3, 6, 7)]
    layouts = {0: HOME, 1: first}
    before = recovery([*states, *joiners], layouts, HOME)
    assert (before.from_epoch, before.steps_applied, before.sources) == (0, 9, (0, 1, 4, 5))
    went_back = replace(states[0], steps_applied=9, held_epochs=(0,) if lets_go else (0, 1))
    assert recovery([went_back, *states[1:], *joiners], layouts, HOME) == before


def test_where_the_newest_epoch_contradicts_itself_what_is_on_disk_is_read():
    states = [replace(parked(r, 11 if r else 10), checkpoint_steps=(5,)) for r in HOME.ranks if r != 3]
    decision = recovery(states)
    assert (decision.from_checkpoint, decision.steps_applied, decision.sources) == (True, 5, ())
    assert (decision.from_epoch, decision.from_layout) == (0, HOME)


def test_a_joiner_is_no_source_and_holds_nobody_up():
    joiner = RankState(rank=3, incarnation=1, phase=RankPhase.JOINING)
    decision = recovery([joiner, *(parked(r) for r in HOME.ranks if r not in (3, 6))], to_layout=without(6))
    assert 3 not in decision.sources
    assert decision.steps_applied == 10


def test_a_model_that_is_lost_in_part_cannot_go_on_from_memory():
    with pytest.raises(NoAgreementError, match=r"blocks \[4, 5, 6, 7\].*gone: ranks \[3, 7\].*no checkpoint"):
        recovery([parked(r) for r in (0, 1, 2, 4, 5, 6)], to_layout=without(3, 7))


def test_a_boundary_needs_everybody_at_work_in_the_epoch_in_force():
    states = {r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=0) for r in HOME.ranks}
    decision = boundary_decision(states, epoch=0, layout=HOME, to_layout=HOME)
    assert (decision.steps_applied, decision.sources) == (-1, HOME.ranks)
    assert (decision.from_epoch, decision.from_layout) == (0, HOME)
    states[5] = parked(5)
    with pytest.raises(NoAgreementError, match=r"5: 'parked in epoch 0'"):
        boundary_decision(states, epoch=0, layout=HOME, to_layout=HOME)


def test_whole_replicas_need_nobody_who_is_gone_and_no_epoch_in_common():
    whole = replace(HOME, whole=True)
    states = {
        r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=r % 3)
        for r in HOME.ranks
        if r not in (2, 5)
    }
    decision = boundary_decision(states, epoch=1, layout=whole, to_layout=replace(without(2, 5), whole=True))
    assert (decision.steps_applied, decision.sources) == (-1, HOME.ranks)
    assert (decision.from_epoch, decision.from_layout) == (1, whole)


def test_a_replica_that_comes_back_alone_is_told_its_share_though_all_that_the_layout_counts_on_are_gone():
    alone, other = replace(without(*range(4)), whole=True), replace(without(*range(4, 8)), whole=True)
    state = RankState(rank=0, incarnation=1, phase=RankPhase.TRAINING, epoch=0)
    decision = boundary_decision({0: state}, epoch=1, layout=alone, to_layout=other)
    assert (decision.from_layout, decision.sources) == (alone, alone.ranks)


def test_only_a_recovery_gets_past_ranks_that_are_all_at_work_in_another_epoch():
    states = {r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=3) for r in HOME.ranks}
    with pytest.raises(RecoveryNeededError, match="only a recovery"):
        boundary_decision(states, epoch=4, layout=HOME, to_layout=HOME)
    states[5] = replace(states[5], epoch=4)
    with pytest.raises(NoAgreementError, match="a boundary needs everybody") as raised:
        boundary_decision(states, epoch=4, layout=HOME, to_layout=HOME)
    assert not isinstance(raised.value, RecoveryNeededError), "they may be on their way"


@pytest.mark.parametrize("epoch", [4, 5])
def test_only_a_recovery_brings_a_parked_rank_back(epoch: int):
    """Epoch 5 was decided and entered; a scheduler that began anew since then knows of 4."""
    states = {r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=4) for r in HOME.ranks}
    states[5] = replace(states[5], phase=RankPhase.PARKED, epoch=epoch)
    with pytest.raises(RecoveryNeededError, match="only a recovery"):
        boundary_decision(states, epoch=4, layout=HOME, to_layout=HOME)


def test_a_boundary_waits_for_no_plan_that_is_committed_and_not_applied():
    states = {r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=0) for r in HOME.ranks}
    states[3] = replace(states[3], pending_epoch=2)
    with pytest.raises(RecoveryNeededError, match=r"not applied, by epoch: \{3: 2\}"):
        boundary_decision(states, epoch=0, layout=HOME, to_layout=HOME)


@pytest.mark.parametrize(
    ("phase", "epoch", "joins"),
    [
        (RankPhase.JOINING, -1, True),
        (RankPhase.PARKED, 1, True),
        (RankPhase.PARKED, 4, False),
        (RankPhase.RESHAPING, 1, False),
    ],
)
def test_who_joins_at_a_boundary(phase: RankPhase, epoch: int, joins: bool):
    states = {r: RankState(rank=r, incarnation=0, phase=RankPhase.TRAINING, epoch=4) for r in HOME.ranks}
    states[3] = RankState(rank=3, incarnation=1, phase=phase, epoch=epoch)
    if joins:
        boundary_decision(states, epoch=4, layout=without(3), to_layout=HOME)
    else:
        with pytest.raises(RecoveryNeededError, match="only a recovery brings them in"):
            boundary_decision(states, epoch=4, layout=without(3), to_layout=HOME)
