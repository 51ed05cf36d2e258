"""Which of a job's spare ranks to plan with: a plan for more of them is never slower than one for fewer.

Levers answer to who is there, so with a rank more they may lead somewhere else, and to something slower. Spare ranks,
those that live and have no place in the layout in force, are therefore left out step by step, and what was found with
fewer is a candidate where there are more. Spares of one speed in one place are interchangeable: how many of them there
are is enough, not which. Where steps would be too many, only some are taken: none, one less of each kind, all.
"""

from itertools import product
from math import prod

from evenkeel.planning.repair import places_of
from evenkeel.planning.situation import Situation

_MAX_STEPS = 16
_FEW_STEPS = 4
_LARGE = 1024


def steps(situation: Situation, *, thoroughly: bool) -> tuple[frozenset[int], ...]:
    """Spare ranks to leave out, one set after the other; the last leaves out nobody.

    Args:
        situation: The question.
        thoroughly: Whether there is time for many.
    """
    kinds = _kinds(situation)
    counts = tuple(map(len, kinds))
    most = _MAX_STEPS if thoroughly else _FEW_STEPS if len(situation.throughputs) <= _LARGE else 2
    if prod([count + 1 for count in counts]) <= most:
        taken = list(product(*[range(count + 1) for count in counts]))
    else:
        none = (0,) * len(counts)
        fewer = [tuple([c - (k == i) for k, c in enumerate(counts)]) for i in range(len(counts))]
        taken = [none, *(fewer if len(counts) <= most - 2 else ()), counts]
        taken = list(dict.fromkeys(taken))
    return tuple([frozenset([r for n, kind in zip(some, kinds, strict=True) for r in kind[n:]]) for some in taken])


def _kinds(situation: Situation) -> list[list[int]]:
    """Spare ranks by speed, domain, slow links, and place in the full shape."""
    placed = set(situation.layout.ranks)
    spares = [rank for rank in situation.throughputs if rank not in placed]
    if not spares:
        return []
    homes = places_of(situation.home)
    kinds: dict[object, list[int]] = {}
    for rank in sorted(spares):
        links = tuple([link for link in situation.links if rank in link.ranks])
        key = situation.throughputs[rank], situation.domain(rank), homes.get(rank), links
        kinds.setdefault(key, []).append(rank)
    return list(kinds.values())
