"""Structures: who works where, before widths, splits and quotas are tuned."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.planning.candidate import SCHEDULE, Candidate, same
from evenkeel.planning.levers import REGISTRY, STRUCTURAL, Lever
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import with_standbys
from evenkeel.planning.situation import Situation

Structure = tuple[tuple[str, ...], Layout]
"""The levers that led to it, and the layout."""

_DEALERS = ("placement", "standby")
_MOVERS = frozenset(("move_ranks", "placement", "depths"))


def structures(
    situation: Situation, more: Sequence[Structure] = (), levers: Sequence[Lever] = STRUCTURAL
) -> list[Structure]:
    """Structures to tune, with the structural levers that led to each; the layout in force first, if it lives.

    Args:
        situation: The question.
        more: Structures of the same question with more ranks that have no place in the full shape either; where no
            memory limit is known, no lever but standbys heeds those.
        levers: Who is asked, in this order.
    """
    live = situation.throughputs.keys()
    current = bare(situation.layout)
    found: list[Structure] = []

    def add(names: tuple[str, ...], layout: Layout) -> None:
        if not any(same(layout, other) for _, other in found):
            found.append((names, layout))

    if not situation.dead:
        add((), with_standbys(current, live))
    for lever in levers:
        if more and lever.name != "standby":
            for names, layout in more:
                if names == (lever.name,):
                    add(names, with_standbys(layout, live))
            continue
        bases: list[Structure] = [((), current)]
        if lever.name == "standby":
            # Ranks that moving others leaves over are few and fit nowhere.
            bases = [each for each in found if not _MOVERS.intersection(each[0])]
        for names, base in bases:
            for layout in lever.propose(situation, base):
                add((*names, lever.name), layout)
    return found


def dealt_again(situation: Situation, candidate: Candidate, *, thoroughly: bool) -> Iterator[Structure]:
    """A layout with its ranks dealt anew: tuning leaves some without work, and others in a weak place."""
    names, layout = candidate.structural_levers, bare(candidate.layout)
    if thoroughly:
        # Splits and quotas were sought for one another as they were before, and steps under one schedule.
        yield names, layout
        plain, now = tuple([name for name in names if name != SCHEDULE]), situation.layout.schedule
        for schedule in situation.home.schedules:
            if schedule != layout.schedule:
                yield plain if schedule == now else (*plain, SCHEDULE), replace(layout, schedule=schedule)
    for dealer in _DEALERS:
        for dealt in REGISTRY[dealer].propose(situation, layout):
            yield with_levers(names, dealer), dealt
            if thoroughly and dealer == "placement" and dealt.standbys:
                for wider in REGISTRY["standby"].propose(situation, dealt):
                    yield with_levers(names, dealer, "standby"), wider


def under_schedules(structures: Sequence[Structure], schedules: Collection[str]) -> Iterator[Structure]:
    """Each structure under each of these schedules."""
    for names, base in structures:
        for schedule in schedules:
            if schedule == base.schedule:
                yield names, base
            else:
                yield (*names, SCHEDULE), replace(base, schedule=schedule)


def with_levers(names: tuple[str, ...], *more: str) -> tuple[str, ...]:
    """Names of levers and further ones, each once."""
    return tuple(dict.fromkeys((*names, *more)))
