"""What fast layouts become with routes or with several stages a rank, for jobs whose engine runs these. Pure."""

from collections.abc import Iterator, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.planning.candidate import Candidate, same
from evenkeel.planning.costs.risks import RISK_MARGIN, num_risks
from evenkeel.planning.levers import REGISTRY
from evenkeel.planning.levers.migrate_stage import least_routed_seconds
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE

MIGRATE = "migrate_stage"
VIRTUAL = "virtual_stages"
_MAX_LOOKED_AT, _MAX_INTERLEAVED = 4, 2
_MAX_ROUTED, _MAX_ROUTED_OF_FEW = 2, 4


def routed(
    situation: Situation, candidates: Sequence[Candidate], *, thoroughly: bool
) -> Iterator[tuple[Candidate, Layout]]:
    """The most promising layouts with routes, each with the candidate that it was made of.

    Args:
        situation: The question.
        candidates: What was weighed before.
        thoroughly: Seek routes for more of them; there is time for that in small jobs.
    """
    if situation.home.routable:
        for candidate, plain in _to_route(situation, candidates, thoroughly):
            for layout in REGISTRY[MIGRATE].propose(situation, plain):
                yield candidate, layout


def interleaved(situation: Situation, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Layout]]:
    """The fastest layouts with several stages a rank, each with the candidate that it was made of."""
    if situation.may_have_orders:
        for candidate, plain in _to_interleave(candidates):
            for layout in REGISTRY[VIRTUAL].propose(situation, plain):
                yield candidate, layout


def _to_route(
    situation: Situation, candidates: Sequence[Candidate], thoroughly: bool
) -> list[tuple[Candidate, Layout]]:
    """Layouts that routes are sought for: the most promising few of the candidates and of what they were tuned from.

    What is in force, with the quotas of the full shape, is among them when it is done thoroughly: routes can be better
    than all that whole micro-batches bring.
    """
    fastest = min(candidate.judged for candidate in candidates)
    ordered = sorted(candidates, key=lambda c: c.judged)
    found: list[tuple[float, Candidate, Layout]] = []
    for candidate in ordered if thoroughly else ordered[:_MAX_LOOKED_AT]:
        for layout in (candidate.layout, candidate.base):
            plain = bare(layout)
            if any(same(plain, other) for _, _, other in found) or situation.excess_bytes(plain):
                continue
            least = least_routed_seconds(situation, plain) * (1.0 + RISK_MARGIN * num_risks(situation, plain))
            if least < fastest * (1.0 - TIE):
                found.append((least, candidate, plain))
    found.sort(key=lambda each: each[0])
    return [(candidate, plain) for _, candidate, plain in found[: _MAX_ROUTED_OF_FEW if thoroughly else _MAX_ROUTED]]


def _to_interleave(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Layout]]:
    """Layouts of one stage a rank that are tried with several: the fastest few of the candidates."""
    found: list[tuple[Candidate, Layout]] = []
    for candidate in sorted(candidates, key=lambda c: c.judged)[:_MAX_LOOKED_AT]:
        plain = bare(candidate.layout)
        if not any(same(plain, other) for _, other in found):
            found.append((candidate, plain))
    return found[:_MAX_INTERLEAVED]
