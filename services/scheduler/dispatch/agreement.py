"""What the ranks' answers to Prepare mean: from which epoch to read, from whom, and which step is the last one. Pure.

The step vote is a barrier, so ranks are never more than one step apart, and a rank steps only after everybody voted: if
somebody has applied step k, everyone at k holds its reduced gradients and steps too. The newest epoch that all its
survivors hold completely is the one to read from: while epoch e + 1 has no voted step, every survivor of e holds e.
"""

from collections.abc import Mapping

from layouts.layout import Layout
from layouts.model import ModelSpec
from services.scheduler.dispatch.protocol import Decision, RankPhase, RankState
from services.scheduler.planning.coverage import uncovered_blocks


class NoAgreementError(ValueError):
    """The answers do not allow the plan to be committed; the message says what contradicts what."""


def _handles(states: Mapping[int, RankState], to_layout: Layout) -> tuple[bytes, ...]:
    """Handles of the new layout's ranks, ascending; empty unless every rank has one."""
    handles = tuple(states[rank].group_handle for rank in to_layout.ranks)
    return handles if all(handles) else ()


def boundary_decision(states: Mapping[int, RankState], *, epoch: int, layout: Layout, to_layout: Layout) -> Decision:
    """The decision for a plan that everybody applies together at a step vote.

    Args:
        states: Answer of every rank of both layouts.
        epoch: Epoch in force.
        layout: Layout in force.
        to_layout: Layout of the plan.

    Raises:
        NoAgreementError: Some rank is not training under the epoch in force.
    """
    elsewhere = {
        rank: f"{states[rank].phase} in epoch {states[rank].epoch}"
        for rank in layout.ranks
        if states[rank].epoch != epoch or states[rank].phase in (RankPhase.PARKED, RankPhase.FINISHED)
    }
    if elsewhere:
        raise NoAgreementError(f"ranks {elsewhere} are not at work in epoch {epoch}: a boundary needs everybody")
    return Decision(
        from_epoch=epoch,
        from_layout=layout,
        sources=layout.ranks,
        steps_applied=-1,
        group_handles=_handles(states, to_layout),
    )


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
        NoAgreementError: No epoch is held by all its survivors, part of the model is lost, or steps contradict.
    """
    problem = "no survivor holds any epoch"
    for epoch in sorted(layouts, reverse=True):
        survivors = [rank for rank in layouts[epoch].ranks if rank in states]
        holders = [rank for rank in survivors if epoch in states[rank].held_epochs]
        # A replacement process of a rank of that epoch never held it: it is no survivor.
        lacking = [rank for rank in survivors if rank not in holders and states[rank].phase is not RankPhase.JOINING]
        if not holders or lacking:
            continue
        lost = uncovered_blocks(model, layouts[epoch], holders)
        if lost:
            problem = f"blocks {list(lost)} of epoch {epoch} are held by nobody alive"
            continue
        return Decision(
            from_epoch=epoch,
            from_layout=layouts[epoch],
            sources=tuple(holders),
            steps_applied=_steps({rank: states[rank] for rank in holders}),
            group_handles=_handles(states, to_layout),
        )
    raise NoAgreementError(f"nothing to go on from: {problem}; restore a checkpoint")


def _steps(states: Mapping[int, RankState]) -> int:
    """The step that all have applied when the new epoch begins."""
    most = max(state.steps_applied for state in states.values())
    behind = {rank: s.steps_applied for rank, s in states.items() if s.steps_applied != most}
    cannot = {rank: steps for rank, steps in behind.items() if steps != most - 1 or not states[rank].voted}
    if cannot:
        raise NoAgreementError(
            f"somebody applied step {most - 1}, but ranks {cannot} are at these steps and have not voted for the next: "
            "their parameters would differ"
        )
    return most
