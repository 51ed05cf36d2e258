"""What a job's ranks do at a moment: the one answer that every screen shows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from evenkeel.layouts.copies import Placement, losses_not_survived
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.exits import program_errors
from evenkeel.services.scheduler.domain.job_state import HEALTHY, JobKnowledge
from evenkeel.services.scheduler.domain.parts import RankInfo
from evenkeel.services.scheduler.domain.stuck import Stuck, StuckReason

_MOST_NAMED = 8
_MOST_LOSSES_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Each rank of a job is in one of the lists, or in none when it is done; all ascending.

    Attributes:
        training: Ranks that train in the layout in force.
        num_ranks: Ranks that the job has, standbys among them.
        idle: Ranks that live and do not train, by reason.
        joining: Ranks that have a later process on its way into the job.
        gone: Ranks without a process.
        stuck: Why no plan can keep the job going; None = one can.
        finished: The job has ended.
        not_survived: Ranks and nodes, alone or in pairs, whose loss would leave only a checkpoint on disk to go on
            from; none while ranks of the layout in force do not train, and none where nobody reshapes the job.
    """

    training: tuple[int, ...] = ()
    num_ranks: int = 0
    idle: tuple[tuple[str, tuple[int, ...]], ...] = ()
    joining: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    stuck: Stuck | None = None
    finished: bool = False
    not_survived: tuple[tuple[str, ...], ...] = ()

    @property
    def there(self) -> frozenset[int]:
        """Ranks that are neither gone nor done."""
        return frozenset([*self.training, *self.joining, *(rank for _, ranks in self.idle for rank in ranks)])

    @property
    def summary(self) -> str:
        """All of it in one line for a person; how long it has been stuck is left to who knows the time."""
        if self.finished:
            return "finished"
        parts = [f"training {len(self.training)} of {self.num_ranks}"]
        parts += [f"idle {len(ranks)} ({_named(ranks)}: {reason})" for reason, ranks in self.idle]
        parts += [f"joining {len(self.joining)} ({_named(self.joining)})"] * bool(self.joining)
        parts += [f"gone {len(self.gone)} ({_named(self.gone)})"] * bool(self.gone)
        if self.stuck is not None:
            since = self.stuck.since.strftime("%H:%M:%S UTC")
            parts.append(f"stuck since {since}: {self.stuck.detail}; to free it: {self.stuck.frees_by}")
        if self.not_survived:
            named = ", ".join(" + ".join(units) for units in self.not_survived[:_MOST_LOSSES_NAMED])
            num_more = len(self.not_survived) - _MOST_LOSSES_NAMED
            more = f" and {num_more} more" if num_more > 0 else ""
            parts.append(f"without a checkpoint cannot survive the loss of {named}{more}")
        return ", ".join(parts)


def standing(job: JobKnowledge, states: Mapping[int, RankState]) -> Standing:
    """What a job's ranks do.

    Args:
        job: The job.
        states: What each rank said last of itself, by rank, of whichever of its processes.
    """
    if job.finished:
        return Standing(num_ranks=len(job.ranks), finished=True)
    if job.stuck_by is StuckReason.UNHEARD:
        # What they said last is not what they do now, unless they are done.
        states = {rank: state for rank, state in states.items() if state.phase is RankPhase.FINISHED}
    training, joining, gone = list[int](), list[int](), list[int]()
    idle: dict[str, list[int]] = {}
    for rank, info in sorted(job.ranks.items()):
        state = states.get(rank)
        said = state if state is not None and state.incarnation == info.incarnation else None
        if rank in job.newcomers or rank in job.vacant:
            joining.append(rank)
        elif not info.alive:
            gone.append(rank)
        elif said and said.phase is RankPhase.TRAINING and said.epoch == job.epoch and rank in job.layout.ranks:
            training.append(rank)
        elif said is None or said.phase is not RankPhase.FINISHED:
            idle.setdefault(_why_idle(job, info, said), []).append(rank)
    return Standing(
        training=tuple(training),
        num_ranks=len(job.ranks),
        idle=tuple((reason, tuple(ranks)) for reason, ranks in idle.items()),
        joining=tuple(joining),
        gone=tuple(gone),
        stuck=_with_errors(job),
        not_survived=_not_survived(job, states) if job.can_reshape and {*job.layout.ranks} <= {*training} else (),
    )


def _not_survived(job: JobKnowledge, states: Mapping[int, RankState]) -> tuple[tuple[str, ...], ...]:
    """By the copies that the ranks themselves say they keep, whatever they were set up to do."""
    ranks = job.layout.ranks
    placements = (Placement(owner=owner, keeper=keeper) for keeper in ranks for owner in states[keeper].keeper_of)
    return _losses(job.layout, tuple((rank, job.ranks[rank].node) for rank in ranks), tuple(placements))


@lru_cache(maxsize=1024)
def _losses(
    layout: Layout, nodes: tuple[tuple[int, str], ...], placements: tuple[Placement, ...]
) -> tuple[tuple[str, ...], ...]:
    """Asked for with every word of a rank, and another one with every epoch only: tenths of a second for 4096 ranks."""
    return losses_not_survived(layout, dict(nodes), placements)


def _why_idle(job: JobKnowledge, info: RankInfo, said: RankState | None) -> str:
    """Why a process that lives does not train."""
    if not info.address:
        return "has not registered"
    if said is None:
        return "nothing heard from its controller"
    if said.phase is RankPhase.RESHAPING:
        return "switches to another layout"
    if said.phase is RankPhase.PARKED:
        if job.lost:
            return f"waits for a plan without {_named(job.lost)}"
        return "waits for a plan"
    if info.rank in job.layout.ranks:
        if said.phase is RankPhase.JOINING:
            return "sets up"
        return f"is in epoch {said.epoch}, the layout in force in {job.epoch}"
    if info.rank in job.layout.standbys:
        return "standby"
    if info.throughput < HEALTHY:
        return f"left out at {info.throughput:.2f} of healthy speed"
    return "the layout does without it"


def _with_errors(job: JobKnowledge) -> Stuck | None:
    """The reason, with what the program raised where that is what took the ranks away."""
    stuck, errors = job.stuck, program_errors(job)
    if stuck is None or not errors or errors[0] in stuck.detail:
        return stuck
    more = f" and {len(errors) - 1} other errors" if len(errors) > 1 else ""
    return replace(stuck, detail=f"{stuck.detail}; the program raised {errors[0]}{more}")


def _named(ranks: tuple[int, ...]) -> str:
    """Ranks in words: ``rank 3``, ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MOST_NAMED]]
    more = " and more" if len(runs) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}{more}"
