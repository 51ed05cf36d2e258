"""The search for the best layout of one situation: what was weighed so far, and the steps that weigh more."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, islice

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.price import Price
from evenkeel.planning.costs.risks import RISK_MARGIN, crowding, judged_seconds, num_risks
from evenkeel.planning.exact.every_layout import look_at_all
from evenkeel.planning.levers import Asked, asked_at
from evenkeel.planning.levers.balance.tuning import Tuner
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import same, with_standbys
from evenkeel.planning.search.candidate import Candidate
from evenkeel.planning.search.structures import Structure, dealt_again, under_schedules, with_levers
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError

_MAX_STEPS, _STEP_WORK, _MAX_CLIMBED = 24, 240_000, 3
"""Steps of one rank or stage that are looked at (fewer, down to none, where stages times blocks are many), and from how
many candidates."""
_MAX_TIED = 2
_MAX_ROUNDS = 4
_MAX_STAGES = 15


class Search:
    """What was weighed so far for a situation.

    Args:
        situation: The question.

    Attributes:
        structures: What was tuned first.
        is_small: Whether there is time to look at the job's stages one by one.
        knows_all: Whether no layout at all is judged faster than the fastest of the candidates.
    """

    def __init__(self, situation: Situation) -> None:
        self.situation, self.tuner = situation, Tuner(situation)
        self.candidates: list[Candidate] = []
        self.structures: list[Structure] = []
        self._dealt: list[Layout] = []
        self.knows_all = False
        self.is_small = sum([len(replica.stages) for replica in situation.home.replicas]) <= _MAX_STAGES
        self._tuning = tuple([each.name for each in asked_at(Asked.TUNING) if each.is_possible(situation)])
        self._polish = [lever for lever in asked_at(Asked.POLISH) if lever.is_possible(situation)]
        self._others = [*asked_at(Asked.SCHEDULE), *self._polish]

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
        judged = seconds * (1.0 + RISK_MARGIN * num_risks(situation, layout)) if not excess else math.inf
        others = [lever.name for lever in self._others if lever.describe(situation.layout, layout)]
        self.candidates.append(
            Candidate(
                structural_levers=names,
                layout=layout,
                base=base,
                other_levers=tuple(others),
                seconds=seconds,
                judged=judged,
                excess_bytes=excess,
            )
        )

    def take(self, other: Candidate) -> None:
        """Weigh what was fastest with fewer ranks."""
        live = self.situation.throughputs.keys()
        self.add(other.structural_levers, with_standbys(other.base, live), with_standbys(other.layout, live))

    def tune(self, structures: Iterable[Structure]) -> None:
        """Weigh what all tuning levers together make of structures."""
        for names, base in structures:
            self.add(names, base, self.tuner.tuned(base, self._tuning))

    def keep_registered(self) -> None:
        """Weigh the full shape just as it was registered where everybody is well: all else is a risk then."""
        situation = self.situation
        if not situation.all_is_well:
            return
        home = with_standbys(situation.home, situation.throughputs.keys())
        names = next((names for names, base in self.structures if base.replicas == home.replicas), ())
        schedules = dict.fromkeys((home.schedule, *home.schedules))
        for levers, base in under_schedules([(names, home)], schedules):
            for layout in (base, self.tuner.mixed(base)):
                self.add(levers, base, layout)

    def deal_anew(self, candidate: Candidate) -> bool:
        """Deal a layout anew, and what becomes of it, as long as that is worth a plan; True when it was."""
        first = self.fastest.judged
        for _ in range(_MAX_ROUNDS if self.is_small else 1):
            if candidate.excess_bytes or any(same(candidate.layout, layout) for layout in self._dealt):
                break
            self._dealt.append(candidate.layout)
            before = self.fastest.judged
            self.tune(dealt_again(self.situation, candidate, thoroughly=self.is_small))
            if self.fastest.judged > before * (1.0 - TIE):
                break
            candidate = self.fastest
        return self.fastest.judged <= first * (1.0 - TIE)

    def look_at_all(self) -> None:
        """Weigh the best of all layouts under each schedule, where these are not too many."""
        if self.fastest.excess_bytes:
            return
        home, first = self.situation.home, self.fastest.layout.schedule
        self.knows_all = not (home.routable or self.situation.may_have_orders)
        schedules = dict.fromkeys((home.schedule, *home.schedules))
        for schedule in sorted(schedules, key=lambda name: name != first):
            known = self.fastest.layout
            judged = judged_seconds(self.situation, replace(known, mix=home.mix))
            looked = look_at_all(self.situation, judged, self._crowding(known), schedule)
            self.knows_all = self.knows_all and looked.is_all
            if looked.base is not None and looked.layout is not None:
                names = tuple([lever.name for lever in asked_at(Asked.STEPS)])
                self.add(names, looked.base, looked.layout)
                # Its own splits too: those sought anew fill no device beyond what they may of their own accord.
                bases = under_schedules([((), base) for base in (looked.base, looked.layout)], schedules)
                self.tune([(names, base) for _, base in bases])

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
            known = len(self.candidates)
            most, allowed = candidate.judged * (1.0 - TIE), self._crowding(candidate.layout)
            steps_on = (
                (with_levers(candidate.structural_levers, lever.name), step)
                for lever in asked_at(Asked.STEPS)
                for step in lever.propose(self.situation, bare(candidate.layout))
            )
            for names, base in islice((step for step in steps_on if self._crowding(step[1]) <= allowed), left):
                left -= 1
                layout = self.tuner.tuned(base, self._tuning)
                is_full = self.situation.excess_bytes(layout) or self._crowding(layout) > allowed
                if not is_full and judged_seconds(self.situation, layout) < most:
                    self.add(names, base, layout)
                    break
            if len(self.candidates) == known:
                break  # no step is worth a plan, or one led to what is known
            candidate = self.candidates[-1]

    def _crowding(self, layout: Layout) -> float:
        """How far a layout fills some device beyond what a plan may do of its own accord."""
        return max([crowding(self.situation, replica.stages) for replica in layout.replicas])

    def refine(self) -> None:
        """Weigh what the fastest become with routes, or with several stages a rank."""
        for lever in self._polish:
            for candidate, plain in lever.starts(self.situation, self.candidates, thoroughly=self.is_small):
                for layout in lever.propose(self.situation, plain):
                    self.add(candidate.structural_levers, candidate.base, layout)

    def tune_less(self) -> None:
        """Weigh every subset of the tuning levers on the structures of the fastest: no lever more than it needs."""
        subsets = [subset for size in range(len(self._tuning) + 1) for subset in combinations(self._tuning, size)]
        most = self.fastest.judged * (1.0 + TIE)
        near_ones = sorted((c for c in self.candidates if c.judged <= most), key=lambda c: c.judged)
        for near in near_ones[:_MAX_TIED]:
            for subset in subsets:
                self.add(near.structural_levers, near.base, self.tuner.tuned(near.base, subset))

    def choose(self) -> tuple[Price, Candidate]:
        """Of those as fast as the fastest the one that moves the fewest bytes, and what it costs.

        Raises:
            NoPlanError: Nothing fits the devices' memory.
        """
        if self.fastest.excess_bytes:
            least = min(candidate.excess_bytes for candidate in self.candidates)
            raise NoPlanError(
                f"no layout of the {len(self.situation.throughputs)} live ranks fits the devices' memory: some device "
                f"lacks {least / 1e9:.2f} GB under the best of them; start replacements and let them register"
            )
        most = self.fastest.judged * (1.0 + TIE)
        tied = [(self.situation.price(c.layout), c) for c in self.candidates if c.judged <= most]
        return min(tied, key=lambda pair: (pair[0].moved_bytes, bool(pair[1].levers), pair[1].judged))
