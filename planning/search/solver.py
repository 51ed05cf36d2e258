"""The best layout for a situation: structural levers give structures, tuning levers are composed on each of them.

For each structure (the layout without its dead, the full shape as far as it lives, standbys placed) widths, splits and
quotas are solved together; the fastest structure is then solved for every subset of the tuning levers, so that the
answer is never slower than any lever alone and equal answers can be told apart: among layouts within 0.5 % of the
fastest, the one that moves the fewest bytes wins, which keeps the parts of the layout that need not change. The fastest
is dealt anew before that: ranks that tuning left without work, stages in a weak place; in small jobs until that brings
nothing more, so that planning from a plan leads to no other. Where the job may have other schedules, structures are
tuned under each; where its engine runs routes or several stages a rank, the fastest are tried with these too. In jobs
of few devices all layouts are looked at, and no more is tried. Where these are too many and ranks are spare, what is
fastest without some of them is weighed too. "Fast" is :func:`risks.judged_seconds`: predicted time with a margin for
structural risks. Pure and deterministic.
"""

from contextlib import suppress

from evenkeel.planning.levers import Asked
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import with_standbys
from evenkeel.planning.search.answer import answer
from evenkeel.planning.search.search import Search
from evenkeel.planning.search.spares import steps
from evenkeel.planning.search.structures import structures, under_schedules
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError, Solution


def solve(situation: Situation) -> Solution:
    """The best layout for a situation, with its reasons.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    search = Search(situation.wary)
    _weigh(search)
    *fewer, _ = steps(search.situation, thoroughly=search.is_small)
    for left_out in () if search.knows_all else fewer:
        part = Search(search.situation.without(left_out))
        with suppress(NoPlanError):
            _weigh(part)
            search.take(part.fastest)
    search.tune_less()
    price, chosen = search.choose()
    if search.is_small and search.deal_anew(chosen):
        # What moves little can be a better start than what is fastest.
        search.tune_less()
        price, chosen = search.choose()
    return answer(situation, search.tuner, chosen, price, search.candidates)


def solve_at_once(situation: Situation) -> Solution:
    """The best of what the levers that only count members lead to, as they leave it: no search and nothing tuned.

    For when nobody answers :func:`solve`: it needs no machine code, and asks about a handful of layouts.

    Raises:
        NoPlanError: Nothing can be made of the live ranks, or nothing of what can fits the devices' memory.
    """
    search = Search(situation.wary)
    search.structures = structures(situation.wary, phases=(Asked.MEMBERS,))
    for names, layout in search.structures:
        search.add(names, layout, layout)
    price, chosen = search.choose()
    return answer(situation, search.tuner, chosen, price, search.candidates)


def _weigh(search: Search) -> None:
    """Weigh what may be best for the situation of a search in which nothing was weighed yet.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    situation = search.situation
    search.structures = structures(situation)
    if not situation.dead:
        idle = with_standbys(situation.layout, situation.throughputs.keys())
        search.add((), bare(idle), idle)
    search.tune(under_schedules(search.structures, situation.home.schedules))
    search.keep_registered()
    search.deal_anew(search.fastest)
    if search.is_small:
        search.look_at_all()
        if not search.knows_all:
            search.climb()
    search.refine()
