"""The best layout for a situation: structural levers give structures, tuning levers are composed on each of them.

For each structure (the layout without its dead, the full shape as far as it lives, standbys placed) widths, splits and
quotas are solved together; the fastest structure is then solved for every subset of the tuning levers, so that the
answer is never slower than any lever alone and equal answers can be told apart: among layouts within 0.5 % of the
fastest, the one that moves the fewest bytes wins, which keeps the parts of the layout that need not change. The fastest
is dealt anew before that: ranks that tuning left without work, stages in a weak place. Where the job may have other
schedules, structures are tuned under the one that is best for the full shape; where its engine runs routes or several
stages a rank, the fastest are tried with these too. "Fast" is :meth:`Situation.judged_seconds`: predicted time with a
margin for structural risks. Pure and deterministic.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from layouts.layout import Layout
from services.scheduler.planning.levers import REGISTRY, STRUCTURAL
from services.scheduler.planning.levers.migrate_stage import least_routed_seconds
from services.scheduler.planning.price import Price
from services.scheduler.planning.repair import with_standbys
from services.scheduler.planning.replay import Replay
from services.scheduler.planning.situation import RISK_MARGIN, Situation
from services.scheduler.planning.solution import Action, Alternative, NoPlanError, Solution
from services.scheduler.planning.tuning import LAYER_SPLIT, MICRO_BATCH_QUOTA, SEQUENCE_MIX, TENSOR_WIDTH, Tuner
from services.scheduler.planning.virtual import bare, has_orders

TIE = 0.005
"""Relative difference below which two layouts count as equally fast."""

_Structure = tuple[tuple[str, ...], Layout]
_SCHEDULE = "schedule"
_SCHEDULE_MARGIN = 0.03
_MIGRATE = "migrate_stage"
_VIRTUAL = "virtual_stages"
_MAX_LOOKED_AT, _MAX_ROUTED, _MAX_INTERLEAVED = 4, 2, 2
_TUNING = (TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA, SEQUENCE_MIX)
_MAX_ALTERNATIVES = 8
_IDLE = "do nothing"
_MAX_TIED = 2
_DEALERS = ("placement", "standby")
_MAX_COMPARED = 3
_MOVERS = frozenset(("move_ranks", "placement", "depths"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    """A layout that was weighed.

    Attributes:
        levers: Names of the levers that led to it.
        layout: It.
        base: The structure that it was tuned from.
        seconds: Predicted seconds per iteration.
        judged: The same with the margin for structural risks; infinite when it does not fit the devices' memory.
        excess_bytes: What the fullest device has too little memory for.
    """

    levers: tuple[str, ...]
    layout: Layout
    base: Layout
    seconds: float
    judged: float
    excess_bytes: float


def _structures(situation: Situation) -> list[tuple[tuple[str, ...], Layout]]:
    """Structures to tune, with the structural levers that led to each; the layout in force first, if it lives."""
    live = situation.throughputs.keys()
    current = bare(situation.layout)
    found: list[tuple[tuple[str, ...], Layout]] = []

    def add(names: tuple[str, ...], layout: Layout) -> None:
        if not any(_same(layout, other) for _, other in found):
            found.append((names, layout))

    if not situation.dead:
        add((), with_standbys(current, live))
    for lever in STRUCTURAL:
        bases: list[tuple[tuple[str, ...], Layout]] = [((), current)]
        if lever.name == "standby":
            # Ranks that moving others leaves over are few and fit nowhere.
            bases = [each for each in found if not _MOVERS.intersection(each[0])]
        for names, base in bases:
            for layout in lever.propose(situation, base):
                add((*names, lever.name), layout)
    return found


def solve(situation: Situation) -> Solution:
    """The best layout for a situation, with its reasons.

    Raises:
        NoPlanError: Nothing can be made of the live ranks.
    """
    structures = _structures(situation)
    if not structures:
        raise NoPlanError(
            f"ranks {list(situation.dead)} are dead and the {len(situation.throughputs)} live ranks do not make one "
            "complete replica; start replacements and let them register"
        )
    tuner = Tuner(situation)
    tuning = _TUNING if situation.home.mix is not None else _TUNING[:-1]
    subsets = [subset for size in range(len(tuning) + 1) for subset in combinations(tuning, size)]
    candidates: list[_Candidate] = []

    def add(names: tuple[str, ...], base: Layout, layout: Layout) -> None:
        if any(_same(layout, other.layout) for other in candidates):
            return
        seconds = situation.seconds(layout)
        excess = situation.excess_bytes(layout)
        judged = seconds * (1.0 + RISK_MARGIN * situation.num_risks(layout)) if not excess else math.inf
        last = (_MIGRATE,) if layout.routes != situation.layout.routes else ()
        if situation.may_have_orders and REGISTRY[_VIRTUAL].describe(situation.layout, layout):
            last = (*last, _VIRTUAL)
        candidates.append(
            _Candidate(
                levers=(*names, *_pulled(base, layout), *last),
                layout=layout,
                base=base,
                seconds=seconds,
                judged=judged,
                excess_bytes=excess,
            )
        )

    if not situation.dead:
        idle = with_standbys(situation.layout, situation.throughputs.keys())
        add((), bare(idle), idle)
    likely, others = situation.schedules(_SCHEDULE_MARGIN)
    for names, base in _under(structures, likely) if likely else structures:
        add(names, base, tuner.tuned(base, tuning))
    for schedule in others:
        # Schedules are compared on the full shape, and on what the best structures become under them: widths and
        # splits for one schedule can be bad ones for another. Only where that is close are all structures tuned.
        best = min(candidate.judged for candidate in candidates)
        for names, base in _under(_best_structures(structures, candidates), (schedule,)):
            add(names, base, tuner.tuned(base, tuning))
        under = [c.judged for c in candidates if c.layout.schedule == schedule]
        if min(under, default=math.inf) <= best * (1.0 + _SCHEDULE_MARGIN):
            for names, base in _under(structures, (schedule,)):
                add(names, base, tuner.tuned(base, tuning))
    for names, base in _again(situation, candidates):
        add(names, base, tuner.tuned(base, tuning))
    for refined in (_routed, _with_orders):
        for candidate, layout in refined(situation, candidates):
            add(_structural(candidate), candidate.base, layout)
    fastest = min(candidate.judged for candidate in candidates)
    near_ones = sorted((c for c in candidates if c.judged <= fastest * (1.0 + TIE)), key=lambda c: c.judged)
    for near in near_ones[:_MAX_TIED]:
        names = _structural(near)
        for subset in subsets:
            # Only the search for splits takes time; where its outcome cannot be near the fastest it is left out.
            if LAYER_SPLIT in subset and tuner.least_seconds(near.base, subset) > fastest * (1.0 + TIE):
                continue
            add(names, near.base, tuner.tuned(near.base, subset))
    fastest = min(candidate.judged for candidate in candidates)
    if fastest == math.inf:
        least = min(candidate.excess_bytes for candidate in candidates)
        raise NoPlanError(
            f"no layout of the {len(situation.throughputs)} live ranks fits the devices' memory: some device lacks "
            f"{least / 1e9:.2f} GB under the best of them; start replacements and let them register"
        )
    tied = [(situation.price(c.layout), c) for c in candidates if c.judged <= fastest * (1.0 + TIE)]
    price, chosen = min(tied, key=lambda pair: (pair[0].moved_bytes, pair[0].num_changed, pair[1].judged))
    return _solution(situation, tuner, chosen, price, candidates)


def _best_structures(structures: Sequence[_Structure], candidates: Sequence[_Candidate]) -> list[_Structure]:
    """The few structures from which the fastest candidates were tuned."""
    judged = [
        (min([c.judged for c in candidates if c.base.replicas == base.replicas], default=math.inf), index)
        for index, (_, base) in enumerate(structures)
    ]
    return [structures[index] for _, index in sorted(judged)[:_MAX_COMPARED]]


def _same(one: Layout, other: Layout) -> bool:
    """True when everybody does the same under both; standbys do nothing."""
    same = one.mix == other.mix and one.schedule == other.schedule and one.routes == other.routes
    return same and one.replicas == other.replicas


def _structural(candidate: _Candidate) -> tuple[str, ...]:
    """Levers that led to the structure of a candidate."""
    return tuple(name for name in candidate.levers if REGISTRY[name].structural or name == _SCHEDULE)


def _again(situation: Situation, candidates: Sequence[_Candidate]) -> Iterator[_Structure]:
    """The fastest layout with its ranks dealt anew: tuning leaves some without work, and others in a weak place."""
    fastest = min(candidates, key=lambda c: c.judged)
    for name in _DEALERS if not fastest.excess_bytes else ():
        for layout in REGISTRY[name].propose(situation, bare(fastest.layout)):
            yield (*_structural(fastest), name), layout


def _routed(situation: Situation, candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, Layout]]:
    """The most promising layouts with routes, for jobs whose engine runs them."""
    if situation.home.routable:
        for candidate, plain in _to_route(situation, candidates):
            for layout in REGISTRY[_MIGRATE].propose(situation, plain):
                yield candidate, layout


def _with_orders(situation: Situation, candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, Layout]]:
    """The fastest layouts with several stages a rank, for jobs whose engine runs them."""
    if situation.may_have_orders:
        for candidate, plain in _to_interleave(candidates):
            for layout in REGISTRY[_VIRTUAL].propose(situation, plain):
                yield candidate, layout


def _to_route(situation: Situation, candidates: Sequence[_Candidate]) -> list[tuple[_Candidate, Layout]]:
    """Layouts that routes are sought for: the most promising few of the candidates and of what they were tuned from."""
    fastest = min(candidate.judged for candidate in candidates)
    found: list[tuple[float, _Candidate, Layout]] = []
    for candidate in sorted(candidates, key=lambda c: c.judged)[:_MAX_LOOKED_AT]:
        for layout in (candidate.layout, candidate.base):
            plain = bare(layout)
            if any(_same(plain, other) for _, _, other in found) or situation.excess_bytes(plain):
                continue
            least = least_routed_seconds(situation, plain) * (1.0 + RISK_MARGIN * situation.num_risks(plain))
            if least < fastest * (1.0 - TIE):
                found.append((least, candidate, plain))
    return [(candidate, plain) for _, candidate, plain in sorted(found, key=lambda each: each[0])[:_MAX_ROUTED]]


def _to_interleave(candidates: Sequence[_Candidate]) -> list[tuple[_Candidate, Layout]]:
    """Layouts of one stage a rank that are tried with several: the fastest few of the candidates."""
    found: list[tuple[_Candidate, Layout]] = []
    for candidate in sorted(candidates, key=lambda c: c.judged)[:_MAX_LOOKED_AT]:
        plain = bare(candidate.layout)
        if not any(_same(plain, other) for _, other in found):
            found.append((candidate, plain))
    return found[:_MAX_INTERLEAVED]


def _under(structures: Sequence[_Structure], schedules: Collection[str]) -> Iterator[_Structure]:
    """Each structure under each of these schedules."""
    for names, base in structures:
        for schedule in schedules:
            if schedule == base.schedule:
                yield names, base
            else:
                yield (*names, _SCHEDULE), replace(base, schedule=schedule)


def _pulled(base: Layout, layout: Layout) -> tuple[str, ...]:
    """Tuning levers that differ between a structure and what became of it."""
    plain = bare(layout)
    return tuple(name for name in _TUNING if REGISTRY[name].describe(base, plain))


def _solution(
    situation: Situation, tuner: Tuner, chosen: _Candidate, price: Price, candidates: list[_Candidate]
) -> Solution:
    changes = not _same(chosen.layout, situation.layout)
    bound = situation.proportional_bound
    idle, shapes = situation.idle_seconds, _healthy_shapes(situation, chosen)
    well = dict.fromkeys(situation.home.ranks, 1.0)
    interleaved = [situation.cost.iteration_seconds(shape, well) for shape in shapes[1:]]
    healthy = min([situation.healthy_seconds, *interleaved])
    actions = _actions(situation, tuner, chosen, idle) if changes else ()
    judged_gain = 0.0
    if changes and situation.all_is_well and not situation.dead:
        judged_gain = 1.0 - chosen.judged / situation.judged_seconds(situation.layout)
    replay = situation.replay()
    if replay is not None:
        chosen, candidates = _replayed(situation, replay, chosen, candidates)
        idle = 0.0 if situation.dead else replay.seconds(situation.layout, situation.throughputs)
        healthy = min([replay.seconds(shape, well) for shape in shapes])
    bound_seconds = healthy / bound
    alternatives = _alternatives(situation, chosen, price, candidates)
    return Solution(
        layout=chosen.layout if changes else situation.layout,
        changes=changes,
        idle_seconds=idle,
        predicted_seconds=chosen.seconds,
        bound_seconds=bound_seconds,
        proportional_bound=bound,
        price=price,
        actions=actions,
        alternatives=alternatives,
        reason=_reason(situation, chosen.seconds, idle, bound_seconds, actions, alternatives, price.moved_bytes),
        judged_gain=judged_gain,
    )


def _healthy_shapes(situation: Situation, chosen: _Candidate) -> list[Layout]:
    """The full shape with everybody healthy, and with several stages a rank where the answer has that too."""
    home = situation.home
    if not has_orders(chosen.layout):
        return [home]
    well = replace(situation, layout=home, throughputs=dict.fromkeys(home.ranks, 1.0), links=())
    return [home, *REGISTRY[_VIRTUAL].propose(well, home)]


def _replayed(
    situation: Situation, replay: Replay, chosen: _Candidate, candidates: list[_Candidate]
) -> tuple[_Candidate, list[_Candidate]]:
    """The candidates as they would have done with the job's recent iterations.

    That is asked for the chosen one and for the layout in force; the others are taken to be off like the chosen one.
    """
    scale = replay.seconds(chosen.layout, situation.throughputs) / chosen.seconds
    told = []
    for candidate in candidates:
        own = scale
        if not candidate.levers:
            own = replay.seconds(candidate.layout, situation.throughputs) / candidate.seconds
        told.append(replace(candidate, seconds=candidate.seconds * own, judged=candidate.judged * own))
    return told[candidates.index(chosen)], told


def _actions(situation: Situation, tuner: Tuner, chosen: _Candidate, idle: float) -> tuple[Action, ...]:
    """Levers that a layout pulls, each with what it saves alone."""
    base_seconds = situation.seconds(chosen.base)
    before, after = bare(situation.layout), bare(chosen.layout)
    actions = []
    for name in chosen.levers:
        lever = REGISTRY[name]
        if name == _MIGRATE:
            otherwise = situation.seconds(replace(chosen.layout, routes=())) if chosen.layout.routes else idle
            gain = max(0.0, otherwise - chosen.seconds)
            text = lever.describe(situation.layout, chosen.layout)
        elif name == _VIRTUAL:
            gain = max(0.0, (situation.seconds(after) if has_orders(chosen.layout) else idle) - chosen.seconds)
            text = lever.describe(situation.layout, chosen.layout)
        elif name == _SCHEDULE:
            gain = max(0.0, situation.seconds(replace(chosen.base, schedule=situation.layout.schedule)) - base_seconds)
            text = lever.describe(situation.layout, chosen.layout)
        elif lever.structural:
            gain = max(0.0, idle - base_seconds) if idle else 0.0
            text = lever.describe(before, after) or "layout of the full shape"
        else:
            gain = max(0.0, base_seconds - situation.seconds(tuner.tuned(chosen.base, (name,))))
            text = lever.describe(before, after) or lever.describe(chosen.base, after)
        actions.append(Action(lever=name, description=text, gain_seconds=gain))
    return tuple(actions)


def _alternatives(
    situation: Situation, chosen: _Candidate, price: Price, candidates: list[_Candidate]
) -> tuple[Alternative, ...]:
    """What lost, fastest first, each with why."""
    found: dict[str, Alternative] = {}
    for other in sorted(candidates, key=lambda c: (c.judged, c.levers)):
        name = " + ".join(other.levers) or _IDLE
        if other is chosen or name in found:
            continue
        if other.excess_bytes:
            reason = f"a device lacks {other.excess_bytes / 1e9:.2f} GB of memory"
        elif other.seconds > chosen.seconds * (1.0 + TIE):
            reason = f"{100.0 * (other.seconds / chosen.seconds - 1.0):.1f} % slower"
        elif other.judged > chosen.judged * (1.0 + TIE):
            gain = 100.0 * (1.0 - other.seconds / chosen.seconds)
            reason = f"{gain:.1f} % faster, too little for its structural risk"
        else:
            moved = situation.price(other.layout).moved_bytes / 1e6
            kept = price.moved_bytes / 1e6
            reason = f"as fast within {100.0 * TIE:.1f} %, but moves {moved:.2f} MB, not {kept:.2f}"
        found[name] = Alternative(name=name, predicted_seconds=other.seconds, reason=reason)
    # What would be if nothing was done is always told.
    told = list(found.values())
    idle = [other for other in told[_MAX_ALTERNATIVES:] if other.name == _IDLE]
    return (*told[: _MAX_ALTERNATIVES - len(idle)], *idle)


def _reason(
    situation: Situation,
    seconds: float,
    idle: float,
    bound: float,
    actions: tuple[Action, ...],
    alternatives: tuple[Alternative, ...],
    moved: int,
) -> str:
    """One paragraph for a person."""
    parts = []
    if situation.dead:
        parts.append(f"Rank {', '.join(map(str, situation.dead))} cannot be used any more.")
    slow = {r: p for r, p in sorted(situation.throughputs.items()) if p < 0.97}
    if slow:
        parts.append(f"Slow devices: {', '.join(f'rank {r} at {p:.2f}' for r, p in slow.items())}.")
    if not actions:
        parts.append("No layout is faster than the one in force.")
    else:
        parts.append(f"Pulled: {'; '.join(a.description for a in actions)}.")
    if situation.cost.workload.measured:
        if situation.dead:
            parts.append(f"Predicted {seconds:.4f} s per iteration.")
        else:
            parts.append(f"Predicted {seconds:.4f} s per iteration instead of {idle:.4f} s.")
    else:
        parts.append("The job has no profile yet, so only the ratios of predictions mean anything.")
    parts.append(f"That is {100.0 * bound / seconds:.1f} % of the proportional bound; {moved / 1e6:.2f} MB move.")
    if alternatives:
        parts.append(f"Next best: {alternatives[0].name}, {alternatives[0].reason}.")
    return " ".join(parts)
