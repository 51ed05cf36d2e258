"""The best layout for a situation: structural levers give structures, tuning levers are composed on each of them.

For each structure (the layout without its dead, the full shape as far as it lives, standbys placed) widths, splits and
quotas are solved together; the fastest structure is then solved for every subset of the tuning levers, so that the
answer is never slower than any lever alone and equal answers can be told apart: among layouts within 0.5 % of the
fastest, the one that moves the fewest bytes wins, which keeps the parts of the layout that need not change. The fastest
is dealt anew before that: ranks that tuning left without work, stages in a weak place; in small jobs until that brings
nothing more, so that planning from a plan leads to no other. Where the job may have other schedules, structures are
tuned under the one that is best for the full shape; where its engine runs routes or several stages a rank, the fastest
are tried with these too. In jobs of few devices all layouts are looked at, and no more is tried. Where these are too
many and ranks are spare, what is fastest without some of them is weighed too. "Fast" is
:meth:`Situation.judged_seconds`: predicted time with a margin for structural risks. Pure and deterministic.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, islice

from layouts.layout import Layout
from services.scheduler.planning.answer import answer
from services.scheduler.planning.candidate import SCHEDULE, Candidate, same
from services.scheduler.planning.every_layout import SCHEDULE as ALL_UNDER
from services.scheduler.planning.every_layout import look_at_all
from services.scheduler.planning.levers import REGISTRY, STRUCTURAL
from services.scheduler.planning.levers.rearrange import steps_within
from services.scheduler.planning.price import Price
from services.scheduler.planning.refinements import MIGRATE, VIRTUAL, interleaved, routed
from services.scheduler.planning.repair import with_standbys
from services.scheduler.planning.situation import RISK_MARGIN, Situation
from services.scheduler.planning.solution import TIE, NoPlanError, Solution
from services.scheduler.planning.spares import steps
from services.scheduler.planning.tuning import LAYER_SPLIT, MICRO_BATCH_QUOTA, SEQUENCE_MIX, TENSOR_WIDTH, Tuner
from services.scheduler.planning.virtual import bare

_Structure = tuple[tuple[str, ...], Layout]
_SCHEDULE_MARGIN = 0.03
_REARRANGE = "rearrange"
_MAX_STEPS, _STEP_WORK, _MAX_CLIMBED = 24, 240_000, 3
"""Steps of one rank or stage that are looked at (fewer, down to none, where stages times blocks are many), and from how
many candidates."""
_TUNING = (TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA, SEQUENCE_MIX)
_MAX_TIED = 2
_DEALERS = ("placement", "standby")
_MAX_COMPARED = 3
_MAX_ROUNDS = 4
_MAX_STAGES = 15
_MAX_PLANNED_APART = 32
"""Up to so many ranks what is fastest without some of the spare ones is what a plan without them comes to; in larger
jobs it is what its levers come to, to which a plan may add some tenths of a percent."""
_MOVERS = frozenset(("move_ranks", "placement", "depths"))


def _structures(situation: Situation, more: Sequence[_Structure] = ()) -> list[_Structure]:
    """Structures to tune, with the structural levers that led to each; the layout in force first, if it lives.

    Args:
        situation: The question.
        more: Structures of the same question with more ranks that have no place in the full shape either; where no
            memory limit is known, no lever but standbys heeds those.
    """
    live = situation.throughputs.keys()
    current = bare(situation.layout)
    found: list[_Structure] = []

    def add(names: tuple[str, ...], layout: Layout) -> None:
        if not any(same(layout, other) for _, other in found):
            found.append((names, layout))

    if not situation.dead:
        add((), with_standbys(current, live))
    for lever in STRUCTURAL:
        if more and lever.name != "standby":
            for names, layout in more:
                if names == (lever.name,):
                    add(names, with_standbys(layout, live))
            continue
        bases: list[_Structure] = [((), current)]
        if lever.name == "standby":
            # Ranks that moving others leaves over are few and fit nowhere.
            bases = [each for each in found if not _MOVERS.intersection(each[0])]
        for names, base in bases:
            for layout in lever.propose(situation, base):
                add((*names, lever.name), layout)
    return found


class _Search:
    """What was weighed so far for a situation.

    Attributes:
        structures: What was tuned first.
        knows_all: Whether no layout at all is judged faster than the fastest of the candidates.
    """

    def __init__(self, situation: Situation, known: Tuner | None = None) -> None:
        self.situation, self.tuner = situation, Tuner(situation, known)
        self.candidates: list[Candidate] = []
        self.structures: list[_Structure] = []
        self._dealt: list[Layout] = []
        self.knows_all = False
        self.is_small = _is_small(situation)
        self._tuning = _TUNING if situation.home.mix is not None else _TUNING[:-1]

    @property
    def fastest(self) -> Candidate:
        """The candidate that is judged fastest; of equal ones the first."""
        return min(self.candidates, key=lambda candidate: candidate.judged)

    def add(self, names: tuple[str, ...], base: Layout, layout: Layout) -> None:
        """Weigh a layout to which structural levers led, and what became of the structure."""
        if any(same(layout, other.layout) for other in self.candidates):
            return
        situation = self.situation
        seconds = situation.seconds(layout)
        excess = situation.excess_bytes(layout)
        judged = seconds * (1.0 + RISK_MARGIN * situation.num_risks(layout)) if not excess else math.inf
        last = (MIGRATE,) if layout.routes != situation.layout.routes else ()
        if situation.may_have_orders and REGISTRY[VIRTUAL].describe(situation.layout, layout):
            last = (*last, VIRTUAL)
        self.candidates.append(
            Candidate(
                levers=(*names, *_pulled(base, layout), *last),
                layout=layout,
                base=base,
                seconds=seconds,
                judged=judged,
                excess_bytes=excess,
            )
        )

    def take(self, other: Candidate) -> None:
        """Weigh what was fastest with fewer ranks."""
        live = self.situation.throughputs.keys()
        self.add(other.structural_levers, with_standbys(other.base, live), with_standbys(other.layout, live))

    def tune(self, structures: Iterable[_Structure]) -> None:
        """Weigh what all tuning levers together make of structures."""
        for names, base in structures:
            self.add(names, base, self.tuner.tuned(base, self._tuning))

    def tune_by_schedule(self, structures: Sequence[_Structure]) -> None:
        """The same under the schedules that the job may have."""
        likely, others = self.situation.schedules(_SCHEDULE_MARGIN)
        self.tune(_under(structures, likely) if likely else structures)
        for schedule in others:
            # Schedules are compared on the full shape, and on what the best structures become under them: widths and
            # splits for one schedule can be bad ones for another. Only where that is close are all structures tuned.
            best = self.fastest.judged
            self.tune(_under(_best_structures(structures, self.candidates), (schedule,)))
            under = [c.judged for c in self.candidates if c.layout.schedule == schedule]
            if min(under, default=math.inf) <= best * (1.0 + _SCHEDULE_MARGIN):
                self.tune(_under(structures, (schedule,)))

    def keep_registered(self) -> None:
        """Weigh the full shape just as it was registered where everybody is well: all else is a risk then."""
        situation = self.situation
        if not situation.all_is_well:
            return
        home = with_standbys(situation.home, situation.throughputs.keys())
        names = () if home.replicas == bare(situation.layout).replicas else ("rejoin",)
        schedules = dict.fromkeys((home.schedule, *home.schedules))
        for levers, base in _under([(names, home)], schedules):
            for subset in ((), (SEQUENCE_MIX,)):
                self.add(levers, base, self.tuner.tuned(base, subset))

    def deal_anew(self, candidate: Candidate) -> bool:
        """Deal a layout anew, and what becomes of it, as long as that is worth a plan; True when it was."""
        first = self.fastest.judged
        for _ in range(_MAX_ROUNDS if self.is_small else 1):
            if candidate.excess_bytes or any(same(candidate.layout, layout) for layout in self._dealt):
                break
            self._dealt.append(candidate.layout)
            before = self.fastest.judged
            self.tune(_again(self.situation, candidate, thoroughly=self.is_small))
            if self.fastest.judged > before * (1.0 - TIE):
                break
            candidate = self.fastest
        return self.fastest.judged <= first * (1.0 - TIE)

    def look_at_all(self) -> None:
        """Weigh the best of all layouts, where these are not too many."""
        fastest = self.fastest
        if fastest.excess_bytes:
            return
        home = self.situation.home
        judged = self.situation.judged_seconds(replace(fastest.layout, mix=home.mix), ALL_UNDER)
        looked = look_at_all(self.situation, judged, max(0.0, self._crowding(fastest.layout)))
        schedules = dict.fromkeys((home.schedule, *home.schedules))
        if looked.base is not None and looked.layout is not None:
            self.add((_REARRANGE,), looked.base, looked.layout)
            self.tune(_under([((_REARRANGE,), looked.base)], schedules))
        self.knows_all = looked.is_all and not (home.routable or self.situation.may_have_orders)

    def climb(self) -> None:
        """Weigh what comes of the fastest few by steps of one rank or one stage, as long as one is worth a plan.

        Of few, since the slowest replica decides: where two are as slow, no step alone leads anywhere.
        """
        home = self.situation.home
        num_stages = sum([len(replica.stages) for replica in home.replicas])
        most_steps = min(_MAX_STEPS, _STEP_WORK // (num_stages * home.num_blocks) ** 2)
        starts: list[Candidate] = []
        for candidate in sorted(self.candidates, key=lambda c: c.judged):
            if not any(candidate.base.replicas == other.base.replicas for other in starts):
                starts.append(candidate)
        for candidate in starts[:_MAX_CLIMBED]:
            self._climb(candidate, most_steps)

    def _climb(self, candidate: Candidate, left: int) -> None:
        """Weigh what comes of one candidate."""
        while left > 0 and not candidate.excess_bytes:
            names, known = _with(candidate.structural_levers, _REARRANGE), len(self.candidates)
            most, allowed = candidate.judged * (1.0 - TIE), max(0.0, self._crowding(candidate.layout))
            steps_on = steps_within(self.situation, bare(candidate.layout), most)
            for base in islice((step for step in steps_on if self._crowding(step) <= allowed), left):
                left -= 1
                layout = self.tuner.tuned(base, self._tuning)
                is_full = self.situation.excess_bytes(layout) or self._crowding(layout) > allowed
                if not is_full and self.situation.judged_seconds(layout) < most:
                    self.add(names, base, layout)
                    break
            if len(self.candidates) == known:
                break  # no step is worth a plan, or one led to what is known
            candidate = self.candidates[-1]

    def _crowding(self, layout: Layout) -> float:
        """How far a layout fills some device beyond what a plan may do of its own accord; 0 where memory is known."""
        if self.situation.device_bytes is not None:
            return 0.0
        return max([self.situation.crowding(replica.stages) for replica in layout.replicas])

    def refine(self) -> None:
        """Weigh routes and several stages a rank."""
        for candidate, layout in routed(self.situation, self.candidates, thoroughly=self.is_small):
            self.add(candidate.structural_levers, candidate.base, layout)
        for candidate, layout in interleaved(self.situation, self.candidates):
            self.add(candidate.structural_levers, candidate.base, layout)

    def tune_less(self) -> None:
        """Weigh every subset of the tuning levers on the structures of the fastest: no lever more than it needs."""
        subsets = [subset for size in range(len(self._tuning) + 1) for subset in combinations(self._tuning, size)]
        fastest = self.fastest.judged
        near_ones = sorted((c for c in self.candidates if c.judged <= fastest * (1.0 + TIE)), key=lambda c: c.judged)
        for near in near_ones[:_MAX_TIED]:
            names = near.structural_levers
            for subset in subsets:
                # Only the search for splits takes time; where its outcome cannot be near the fastest it is left out.
                if LAYER_SPLIT in subset and self.tuner.least_seconds(near.base, subset) > fastest * (1.0 + TIE):
                    continue
                self.add(names, near.base, self.tuner.tuned(near.base, subset))

    def choose(self) -> tuple[Price, Candidate]:
        """Of those as fast as the fastest the one that moves the fewest bytes, and what going there costs."""
        most = self.fastest.judged * (1.0 + TIE)
        tied = [(self.situation.price(c.layout), c) for c in self.candidates if c.judged <= most]
        return min(tied, key=lambda pair: (pair[0].moved_bytes, pair[0].num_changed, pair[1].judged))


def solve(situation: Situation) -> Solution:
    """The best layout for a situation, with its reasons.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    wary, levelled = situation.wary, None
    if max(situation.throughputs.values(), default=0.0) > 1.0:
        # A plan for ranks that are faster than healthy is never slower than one in which they are healthy.
        speeds = {rank: min(1.0, p) for rank, p in situation.throughputs.items()}
        with suppress(NoPlanError):
            levelled = _stepped(replace(wary, throughputs=speeds))[2]
    search, price, chosen = _stepped(wary, levelled)
    weighed = search.candidates
    told = [_trusting(situation, candidate) for candidate in weighed]
    return answer(situation, search.tuner, told[weighed.index(chosen)], price, told)


def _stepped(wary: Situation, known: Candidate | None = None) -> tuple[_Search, Price, Candidate]:
    """What was weighed with all ranks, and what is best of that and of what is fastest without some of the spare ones.

    Args:
        wary: The question.
        known: A layout of the same ranks to weigh in the end too.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    search = _Search(wary)
    _weigh(search)
    below: dict[frozenset[int], Candidate] = {}
    *fewer, _ = steps(wary, thoroughly=search.is_small)
    if not search.knows_all:
        for left_out in fewer:
            part = _Search(wary.without(left_out), search.tuner)
            with suppress(NoPlanError):
                unheeded = wary.device_bytes is None and left_out.isdisjoint(wary.home.ranks)
                _weigh(part, search.structures if unheeded else ())
                if len(wary.throughputs) <= _MAX_PLANNED_APART:
                    _chosen(part, [found for ranks, found in below.items() if ranks >= left_out])
                below[left_out] = part.fastest
    return search, *_chosen(search, [*([] if known is None else [known]), *below.values()])


def _trusting(situation: Situation, candidate: Candidate) -> Candidate:
    """The candidate as it is told: what is predicted is what the cost model says, also of stages wider than usual."""
    if not situation.has_wide_stage(candidate.layout):
        return candidate
    return replace(candidate, seconds=situation.seconds(candidate.layout))


def _weigh(search: _Search, more: Sequence[_Structure] = ()) -> None:
    """Weigh what may be best for the situation of a search in which nothing was weighed yet.

    Args:
        search: It.
        more: As in :func:`_structures`.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    situation = search.situation
    structures = search.structures = _structures(situation, more)
    if not structures:
        raise NoPlanError(
            f"ranks {list(situation.dead)} are dead and the {len(situation.throughputs)} live ranks do not make one "
            "complete replica; start replacements and let them register"
        )
    if not situation.dead:
        idle = with_standbys(situation.layout, situation.throughputs.keys())
        search.add((), bare(idle), idle)
    search.tune_by_schedule(structures)
    search.keep_registered()
    search.deal_anew(search.fastest)
    if search.is_small:
        search.look_at_all()
        if not search.knows_all:
            search.climb()
    search.refine()


def _chosen(search: _Search, below: Iterable[Candidate]) -> tuple[Price, Candidate]:
    """What is best of what was weighed, and what going there costs.

    Args:
        search: A search that has weighed.
        below: What is fastest with fewer spare ranks.

    Raises:
        NoPlanError: Nothing fits the devices' memory.
    """
    for one in below:
        search.take(one)
    search.tune_less()
    if search.fastest.excess_bytes:
        least = min(candidate.excess_bytes for candidate in search.candidates)
        raise NoPlanError(
            f"no layout of the {len(search.situation.throughputs)} live ranks fits the devices' memory: some device "
            f"lacks {least / 1e9:.2f} GB under the best of them; start replacements and let them register"
        )
    price, chosen = search.choose()
    if search.is_small and search.deal_anew(chosen):
        # What moves little can be a better start than what is fastest.
        search.tune_less()
        price, chosen = search.choose()
    return price, chosen


def _is_small(situation: Situation) -> bool:
    """Whether there is time to look at a job's stages one by one."""
    return sum([len(replica.stages) for replica in situation.home.replicas]) <= _MAX_STAGES


def _best_structures(structures: Sequence[_Structure], candidates: Sequence[Candidate]) -> list[_Structure]:
    """The few structures from which the fastest candidates were tuned."""
    judged = [
        (min([c.judged for c in candidates if c.base.replicas == base.replicas], default=math.inf), index)
        for index, (_, base) in enumerate(structures)
    ]
    return [structures[index] for _, index in sorted(judged)[:_MAX_COMPARED]]


def _again(situation: Situation, candidate: Candidate, *, thoroughly: bool) -> Iterator[_Structure]:
    """A layout with its ranks dealt anew: tuning leaves some without work, and others in a weak place."""
    names, layout = candidate.structural_levers, bare(candidate.layout)
    if thoroughly:
        # Splits and quotas were sought for one another as they were before.
        yield names, layout
    for dealer in _DEALERS:
        for dealt in REGISTRY[dealer].propose(situation, layout):
            yield _with(names, dealer), dealt
            if thoroughly and dealer == "placement" and dealt.standbys:
                for wider in REGISTRY["standby"].propose(situation, dealt):
                    yield _with(names, dealer, "standby"), wider


def _with(names: tuple[str, ...], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def _under(structures: Sequence[_Structure], schedules: Collection[str]) -> Iterator[_Structure]:
    """Each structure under each of these schedules."""
    for names, base in structures:
        for schedule in schedules:
            if schedule == base.schedule:
                yield names, base
            else:
                yield (*names, SCHEDULE), replace(base, schedule=schedule)


def _pulled(base: Layout, layout: Layout) -> tuple[str, ...]:
    """Tuning levers that differ between a structure and what became of it."""
    plain = bare(layout)
    return tuple(name for name in _TUNING if REGISTRY[name].describe(base, plain))
