"""Structures: who works where, before widths, splits and quotas are tuned."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers import REGISTRY, Asked, asked_at
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import same, with_standbys
from evenkeel.planning.search.candidate import Candidate
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError

Structure = tuple[tuple[str, ...], Layout]
"""The levers that led to it, and the layout."""

_STRUCTURAL = (Asked.MEMBERS, Asked.SHAPE, Asked.SPARES)


def structures(situation: Situation, phases: Sequence[Asked] = _STRUCTURAL) -> list[Structure]:
    """Structures to tune, with the structural levers that led to each; the layout in force first, if it lives.

    Args:
        situation: The question.
        phases: Of the levers that are asked.

    Raises:
        NoPlanError: There is none: nothing can be made of the live ranks.
    """
    live = situation.throughputs.keys()
    current = bare(situation.layout)
    found: list[Structure] = []

    def add(names: tuple[str, ...], layout: Layout) -> None:
        if not any(same(layout, other) for _, other in found):
            found.append((names, layout))

    if not situation.dead:
        add((), with_standbys(current, live))
    for lever in asked_at(*phases):
        bases: list[Structure] = [((), current)]
        if lever.asked[0] is Asked.SPARES:
            bases = [each for each in found if all(REGISTRY[name].leads_on for name in each[0])]
        for names, base in bases:
            for layout in lever.propose(situation, base):
                add((*names, lever.name), layout)
    if not found:
        raise NoPlanError(
            f"ranks {list(situation.dead)} are dead and the {len(live)} live ranks do not make one complete replica; "
            "start replacements and let them register"
        )
    return found


def dealt_again(situation: Situation, candidate: Candidate, *, thoroughly: bool) -> Iterator[Structure]:
    """A layout with its ranks dealt anew: tuning leaves some without work, and others in a weak place."""
    names, layout = candidate.structural_levers, bare(candidate.layout)
    if thoroughly:
        # Splits and quotas were sought for one another as they were before, and steps under one schedule.
        yield names, layout
        for schedule in situation.home.schedules:
            if schedule != layout.schedule:
                yield names, replace(layout, schedule=schedule)
    dealers = [lever for lever in REGISTRY.values() if lever.is_asked_again]
    for place, dealer in enumerate(dealers):
        for dealt in dealer.propose(situation, layout):
            yield with_levers(names, dealer.name), dealt
            for later in dealers[place + 1 :] if thoroughly and dealt.standbys else ():
                for wider in later.propose(situation, dealt):
                    yield with_levers(names, dealer.name, later.name), wider


def under_schedules(structures: Sequence[Structure], schedules: Collection[str]) -> Iterator[Structure]:
    """Each structure under each of these schedules; as it is where there are none."""
    for names, base in structures:
        for schedule in schedules or (base.schedule,):
            yield names, base if schedule == base.schedule else replace(base, schedule=schedule)


def with_levers(names: tuple[str, ...], *more: str) -> tuple[str, ...]:
    """Names of levers and further ones, each once."""
    return tuple(dict.fromkeys((*names, *more)))
