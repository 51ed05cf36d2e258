"""What the ranks' answers to Prepare mean: from which epoch to read, from whom, and which step is the last one. Pure.

The step vote is a barrier, so ranks are never more than one step apart, and a rank steps only after everybody voted: if
somebody has applied step k, everyone at k holds its reduced gradients and steps too. The newest epoch that all its
survivors hold completely is the one to read from: while epoch e + 1 has no voted step, every survivor of e holds e.
What nobody alive holds comes from a peer's copy, else everything comes from disk, else nothing is decided.
"""

from collections.abc import Mapping

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.dispatch.protocol import Decision
from evenkeel.services.scheduler.dispatch.restore import find_meeting, newest_common_checkpoint
from evenkeel.services.scheduler.domain.job_state import JobKnowledge


class NoAgreementError(ValueError):
    """The answers do not allow the plan to be committed; the message says what contradicts what."""


class NothingLeftError(NoAgreementError):
    """There is no epoch and no step to go on from: in no memory, and on no disk that the ranks see."""


class RecoveryNeededError(NoAgreementError):
    """A boundary will never come: a rank waits for peers that left it behind, or all are in an epoch that is over."""


def decision_on(job: JobKnowledge, plan: PlanRecord, states: Mapping[int, RankState]) -> Decision:
    """The decision for a plan.

    Args:
        job: The job.
        plan: The plan.
        states: Answer of every live rank that it concerns.

    Raises:
        NoAgreementError: The answers do not allow it.
    """
    if plan.mode is PlanMode.BOUNDARY:
        return boundary_decision(states, epoch=job.epoch, layout=job.layout, to_layout=plan.layout)
    return recovery_decision(states, layouts=job.layouts, to_layout=plan.layout, model=job.model)


def boundary_decision(states: Mapping[int, RankState], *, epoch: int, layout: Layout, to_layout: Layout) -> Decision:
    """The decision for a plan that everybody applies together at a step vote.

    In a job of whole replicas those who are gone have no say, and whoever is there tells the others: also a newcomer,
    where all whom the layout in force counts on are gone.

    Args:
        states: Answer of every rank of both layouts.
        epoch: Epoch in force.
        layout: Layout in force.
        to_layout: Layout of the plan.

    Raises:
        NoAgreementError: Some rank is not training under the epoch in force.
        RecoveryNeededError: All are training under one other epoch, a rank has parked or has a later plan that it has
            not applied, or a rank that is to join does not wait for a plan.
    """
    if to_layout.whole:  # its replicas agree among themselves on when, and on who is there
        return Decision(from_epoch=epoch, from_layout=layout, sources=layout.ranks, steps_applied=-1)
    pending = {rank: states[rank].pending_epoch for rank in layout.ranks if states[rank].pending_epoch > epoch}
    if pending:
        raise RecoveryNeededError(f"ranks have later plans that are committed and not applied, by epoch: {pending}")
    elsewhere = {
        rank: f"{states[rank].phase} in epoch {states[rank].epoch}"
        for rank in layout.ranks
        if states[rank].epoch != epoch or states[rank].phase in (RankPhase.PARKED, RankPhase.FINISHED)
    }
    # A rank that has parked waits for a recovery; ranks in different epochs may be on their way.
    phases = {states[rank].phase for rank in layout.ranks}
    is_one_other = set(layout.ranks) == elsewhere.keys() and len(set(elsewhere.values())) == 1
    if RankPhase.PARKED in phases or (phases == {RankPhase.TRAINING} and is_one_other):
        raise RecoveryNeededError(f"ranks {elsewhere} are not at work in epoch {epoch}: only a recovery gets past that")
    if elsewhere:
        raise NoAgreementError(f"ranks {elsewhere} are not at work in epoch {epoch}: a boundary needs everybody")
    deaf = {
        rank: f"{states[rank].phase} in epoch {states[rank].epoch}"
        for rank in to_layout.ranks
        if rank not in layout.ranks and not _can_join(states[rank], epoch)
    }
    if deaf:
        raise RecoveryNeededError(f"ranks {deaf} do not wait for a plan to join by: only a recovery brings them in")
    return Decision(
        from_epoch=epoch,
        from_layout=layout,
        sources=layout.ranks,
        steps_applied=-1,
    )


def _can_join(state: RankState, epoch: int) -> bool:
    """Whether a rank takes a boundary plan as a joiner: it has no place, or others have left it behind in its epoch."""
    return state.phase is RankPhase.JOINING or (state.phase is RankPhase.PARKED and state.epoch != epoch)


def recovery_decision(
    states: Mapping[int, RankState], *, layouts: Mapping[int, Layout], to_layout: Layout, model: ModelSpec
) -> Decision:
    """The decision for a plan that parked survivors apply at once.

    Args:
        states: Answer of every survivor and joiner.
        layouts: Layout of every decided epoch.
        to_layout: Layout of the plan.
        model: To check that the survivors hold all of it.

    Raises:
        NothingLeftError: Of each epoch a part is lost, or its survivors cannot meet at a step; and there is no
            checkpoint.
    """
    from_memory = _from_memory(states, layouts, model)
    checkpoint = newest_common_checkpoint(states, to_layout.ranks)
    if checkpoint is None and _before_the_first_step(states):
        checkpoint = 0  # what the seed makes needs no copy
    if isinstance(from_memory, Decision) and (checkpoint is None or checkpoint <= from_memory.steps_applied):
        return from_memory
    if checkpoint is None:
        raise NothingLeftError(
            f"nothing to go on from: {from_memory}, no peer keeps a copy, and ranks {list(to_layout.ranks)} see no "
            "checkpoint; the ranks stay parked and go on when one of these is there"
        )
    newest = max(layouts)
    return Decision(
        from_epoch=newest,
        from_layout=layouts[newest],
        sources=(),
        steps_applied=checkpoint,
        from_checkpoint=True,
    )


def _before_the_first_step(states: Mapping[int, RankState]) -> bool:
    """Whether somebody knows that the job has applied no step, and nobody of one."""
    return any(state.held_epochs for state in states.values()) and not any(
        state.steps_applied for state in states.values()
    )


def _from_memory(states: Mapping[int, RankState], layouts: Mapping[int, Layout], model: ModelSpec) -> Decision | str:
    """The decision for the newest epoch of which survivors and copies have everything, or what is missing, in words.

    An epoch that some survivor has left for a newer one, or never held, may still be whole with its copies: such are
    looked at after those that all their survivors hold.

    Args:
        states: Answer of every survivor and joiner.
        layouts: Layout of every decided epoch.
        model: To see what is missing.
    """
    problems = list[str]()
    for strict in (True, False):
        for epoch, layout in sorted(layouts.items(), reverse=True):
            survivors = [rank for rank in layout.ranks if rank in states]
            holders = [rank for rank in survivors if epoch in states[rank].held_epochs]
            # A replacement process of a rank of that epoch never held it: it is no survivor.
            lacking = {rank for rank in survivors if states[rank].phase is not RankPhase.JOINING} - {*holders}
            if not holders or (strict and lacking):
                continue
            meeting = find_meeting(states, epoch=epoch, layout=layout, holders=holders, model=model)
            if meeting is None:
                problems.append(_contradiction({rank: states[rank] for rank in holders}))
            elif meeting.lost:
                gone = [rank for rank in layout.ranks if rank not in holders]
                blocks = list(meeting.lost)
                problems.append(f"blocks {blocks} of epoch {epoch} are held by nobody alive (gone: ranks {gone})")
            else:
                return Decision(
                    from_epoch=epoch,
                    from_layout=layout,
                    sources=tuple(holders),
                    steps_applied=meeting.steps_applied,
                    stand_ins=meeting.stand_ins,
                )
    return problems[0] if problems else "no survivor holds any epoch"


def _contradiction(states: Mapping[int, RankState]) -> str:
    """What is wrong with holders that cannot be at one step."""
    most = max(state.steps_applied for state in states.values())
    cannot = {rank: s.steps_applied for rank, s in states.items() if s.steps_applied != most}
    return (
        f"somebody applied step {most - 1}, but ranks {cannot} are at these steps and have not voted for the next: "
        "their parameters would differ"
    )
