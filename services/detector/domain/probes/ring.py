"""Which link of a slow group is it? Its transfers cannot tell, so links of its ring are probed one after another. Pure.

A reduction goes around a ring of the group's ranks, ascending, and its slowest link decides how long it takes. Each
probe takes a link that was not probed yet beside one of a healthy group of the kind; where there is none, beside
another of the same ring, so that one of the two is shown. The search ends with the last link; in a long ring already
with one that stands out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.services.detector.domain.frames.probe_reports import Ranks
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.probes.standing import TieStanding
from evenkeel.services.detector.domain.probes.suspicion import SUSPECT_AT

LONG_RING = 9
"""With fewer links all are probed, and the slowest is shown: a probe that somebody disturbed misleads nobody."""

STANDS_OUT = 3.0
"""Times what the other link of its probe took: chance alone seldom leads so far off."""

_HEALTHY_GROUPS = 4
"""The calmest, in which a link to compare with is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPair:
    """A link to probe, and the one beside it; ends ascending."""

    suspect: Ranks
    peer: Ranks
    num_bytes: int


@dataclass(slots=True)
class _Search:
    """Links of a group that were asked for, each with when and of which processes.

    ``ended_at`` is -1 while there may be more to ask.
    """

    asked: dict[Ranks, tuple[int, Ranks]] = field(default_factory=dict)
    ended_at: int = -1


def ring_of(members: Ranks) -> tuple[Ranks, ...]:
    """The links of a group's ring, each with its ends ascending."""
    return (*pairwise(members), (members[0], members[-1]))


@dataclass(slots=True, eq=False)
class RingSearch:
    """The searches of one job.

    Attributes:
        processes_of: The processes of a link.
        node_of: The node of a rank: links within a node are not like those between nodes.
    """

    processes_of: Callable[[Ranks], Ranks] = field(metadata=GIVEN)
    node_of: Callable[[int], str] = field(metadata=GIVEN)
    _searches: dict[Ranks, _Search] = field(default_factory=dict)

    def consider(self, standing: TieStanding, *, iteration: int, asked_faults: Ints) -> LinkPair | None:
        """The next link to probe, if there is one.

        Args:
            standing: After the iteration's tests.
            iteration: The iteration.
            asked_faults: Of which a link with a figure of its own has been probed.
        """
        wanted = np.where(standing.ill, 1.0, standing.evidence)
        searched = (standing.ties.sizes > 2) & ~np.isin(standing.faults, asked_faults)
        suspects = np.flatnonzero((wanted >= SUSPECT_AT) & searched)
        # One link of an endpoint is enough, whichever of its groups it is in.
        over = [row for row in suspects.tolist() if self.is_over(standing.ties[row].ranks, int(standing.since[row]))]
        enough = {int(standing.faults[row]) for row in over if standing.endpoints[row] >= 0}
        done = set(over)
        for row in suspects[np.argsort(-wanted[suspects], kind="stable")].tolist():
            members = standing.ties[row].ranks
            if row in done or int(standing.faults[row]) in enough:
                continue
            search = self._searches.setdefault(members, _Search())
            if search.ended_at >= 0:  # an earlier one
                search.asked, search.ended_at = {}, -1
            found = self._next_of(search, standing, row)
            if found is None:
                # A healthy link to compare with may still turn up, as long as there was none at all.
                search.ended_at = iteration if search.asked else -1
                continue
            suspect, peer, is_last = found
            for ends in (suspect, peer):
                if set(ends) <= set(members):
                    search.asked[ends] = iteration, self.processes_of(ends)
            search.ended_at = iteration if is_last else -1
            return LinkPair(suspect=suspect, peer=peer, num_bytes=int(standing.num_bytes[row]))
        return None

    def is_over(self, members: Ranks, since: int) -> bool:
        """Whether no link of the group is left to probe, or one was found that stands out, since that iteration."""
        search = self._searches.get(members)
        return search is not None and search.ended_at >= max(since, 0)

    def go_back(self, iteration: int) -> None:
        """The job goes on from this iteration, which it has done before: what was asked was asked by then."""
        for search in self._searches.values():
            search.ended_at = min(search.ended_at, iteration)
            search.asked = {ends: (min(at, iteration), processes) for ends, (at, processes) in search.asked.items()}

    def take(self, ends: Ranks, ratio: float, iteration: int) -> None:
        """What a probe that was asked for at that iteration has shown of a link: it stands out, or not."""
        for members, search in self._searches.items():
            if ends in search.asked and len(members) >= LONG_RING and ratio >= STANDS_OUT:
                search.ended_at = max(search.ended_at, iteration)

    def processes(self, suspect: Ranks, peer: Ranks) -> Ranks | None:
        """The processes of a link that was probed beside another one of its own ring; None where it was not."""
        both = [search for search in self._searches.values() if suspect in search.asked and peer in search.asked]
        return both[0].asked[peer][1] if both else None

    def forget(self, concerns: Callable[[Ranks], bool]) -> None:
        """These links are healthy again."""
        for members, search in list(self._searches.items()):
            if any(concerns(ends) for ends in search.asked):
                del self._searches[members]

    def _next_of(self, search: _Search, standing: TieStanding, row: int) -> tuple[Ranks, Ranks, bool] | None:
        """A link of a group that is still to be probed, one beside it, and whether the search is over with them."""
        members, since, endpoint = standing.ties[row].ranks, int(standing.since[row]), int(standing.endpoints[row])
        ring = ring_of(members)
        if endpoint >= 0:
            ring = tuple(ends for ends in ring if endpoint in ends)
        known = {
            ends
            for ends, (asked_at, processes) in search.asked.items()
            if asked_at >= since and processes == self.processes_of(ends)
        }
        if endpoint >= 0 and known & set(ring):
            return None  # one link of an endpoint is enough
        beside = _Beside(standing, row, self.node_of)
        left = [(ends, peer) for ends in ring if ends not in known and (peer := beside.of(ends, known)) is not None]
        if not left:
            return None
        suspect, peer = left[0]
        return suspect, peer, endpoint >= 0 or {ends for ends, _ in left} <= {suspect, peer}


class _Beside:
    """Links that a group's own can be compared with: alike, and without a rank in common."""

    def __init__(self, standing: TieStanding, row: int, node_of: Callable[[int], str]) -> None:
        self._node_of = node_of
        self._own = ring_of(standing.ties[row].ranks)
        healthy = ~standing.ill & (standing.evidence < SUSPECT_AT) & (standing.classes == standing.classes[row])
        alike = healthy & (standing.ties.sizes == len(self._own))
        alike[row] = False
        calmest = sorted(np.flatnonzero(alike).tolist(), key=lambda other: float(standing.evidence[other]))
        self._healthy = [ring_of(standing.ties[other].ranks) for other in calmest[:_HEALTHY_GROUPS]]
        self._crossing = {ends: self._crosses(ends) for ring in (self._own, *self._healthy) for ends in ring}

    def of(self, ends: Ranks, known: set[Ranks]) -> Ranks | None:
        """The link to compare with.

        In another ring rather one in the same place, whose ranks stand to each other as these do; in the same ring
        rather one that is not known yet.
        """
        place = self._own.index(ends)
        unknown = [one for one in self._own if one not in known]
        for links in (*((ring[place], *ring) for ring in self._healthy), unknown, self._own):
            for one in links:
                if self._crossing[one] == self._crossing[ends] and not {*one} & {*ends}:
                    return one
        return None

    def _crosses(self, ends: Ranks) -> bool:
        return self._node_of(ends[0]) != self._node_of(ends[1])
