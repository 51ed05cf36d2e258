"""The best layout for a situation: structural levers give structures, tuning levers are composed on each of them.

For each structure (the layout without its dead, the full shape as far as it lives, standbys placed) widths, splits and
quotas are solved together; the fastest structure is then solved for every subset of the tuning levers, so that the
answer is never slower than any lever alone and equal answers can be told apart: among layouts within 0.5 % of the
fastest, the one that moves the fewest bytes wins, which keeps the parts of the layout that need not change. "Fast" is
:meth:`Situation.judged_seconds`: predicted time with a margin for structural risks. Pure and deterministic.
"""

from itertools import combinations

from layouts.layout import Layout
from services.scheduler.planning.levers import REGISTRY, STRUCTURAL
from services.scheduler.planning.repair import with_standbys
from services.scheduler.planning.situation import Situation
from services.scheduler.planning.solution import Action, Alternative, NoPlanError, Solution
from services.scheduler.planning.tuning import LAYER_SPLIT, MICRO_BATCH_QUOTA, TENSOR_WIDTH, Tuner

TIE = 0.005
"""Relative difference below which two layouts count as equally fast."""

_TUNING = (TENSOR_WIDTH, LAYER_SPLIT, MICRO_BATCH_QUOTA)
_SUBSETS = tuple(subset for size in range(len(_TUNING) + 1) for subset in combinations(_TUNING, size))
_MAX_ALTERNATIVES = 8

_Candidate = tuple[float, tuple[str, ...], Layout]


def _structures(situation: Situation) -> list[tuple[tuple[str, ...], Layout]]:
    """Structures to tune, with the structural levers that led to each; the layout in force first, if it lives."""
    live = situation.throughputs.keys()
    current = situation.layout
    found: dict[tuple[object, ...], tuple[tuple[str, ...], Layout]] = {}

    def add(names: tuple[str, ...], layout: Layout) -> None:
        found.setdefault(layout.replicas, (names, layout))

    if not situation.dead:
        add((), with_standbys(current, live))
    for lever in STRUCTURAL:
        bases = list(found.values()) if lever.name == "standby" else [((), current)]
        for names, base in bases:
            for layout in lever.propose(situation, base):
                add((*names, lever.name), layout)
    return list(found.values())


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
    candidates: dict[tuple[object, ...], _Candidate] = {}

    def add(names: tuple[str, ...], layout: Layout) -> None:
        if layout.replicas not in candidates:
            candidates[layout.replicas] = situation.judged_seconds(layout), names, layout

    bases: dict[tuple[object, ...], tuple[tuple[str, ...], Layout]] = {}
    for names, base in structures:
        layout = tuner.tuned(base, _TUNING)
        bases[layout.replicas] = names, base
        add((*names, *_pulled(base, layout)), layout)
    fastest = min(seconds for seconds, _, _ in candidates.values())
    for layout_key in [key for key, (seconds, _, _) in candidates.items() if seconds <= fastest * (1.0 + TIE)]:
        names, base = bases[layout_key]
        for subset in _SUBSETS:
            layout = tuner.tuned(base, subset)
            add((*names, *_pulled(base, layout)), layout)
    fastest = min(seconds for seconds, _, _ in candidates.values())
    near = [c for c in candidates.values() if c[0] <= fastest * (1.0 + TIE)]
    priced = [(situation.price(c[2]), c) for c in near]
    _, chosen = min(priced, key=lambda pair: (pair[0].moved_bytes, pair[0].num_changed, pair[1][0], pair[1][1]))
    return _solution(situation, tuner, chosen, list(candidates.values()), structures)


def _pulled(base: Layout, layout: Layout) -> tuple[str, ...]:
    """Tuning levers that differ between a structure and what became of it."""
    return tuple(name for name in _TUNING if REGISTRY[name].describe(base, layout))


def _solution(
    situation: Situation,
    tuner: Tuner,
    chosen: _Candidate,
    candidates: list[_Candidate],
    structures: list[tuple[tuple[str, ...], Layout]],
) -> Solution:
    _, names, layout = chosen
    seconds = situation.cost.iteration_seconds(layout, situation.throughputs)
    changes = layout.replicas != situation.layout.replicas
    price = situation.price(layout)
    bound = situation.proportional_bound
    actions = _actions(situation, tuner, names, layout, structures) if changes else ()
    alternatives = _alternatives(situation, chosen, candidates)
    idle = situation.idle_seconds
    bound_seconds = situation.healthy_seconds / bound
    return Solution(
        layout=layout if changes else situation.layout,
        changes=changes,
        idle_seconds=idle,
        predicted_seconds=seconds,
        bound_seconds=bound_seconds,
        proportional_bound=bound,
        price=price,
        actions=actions,
        alternatives=alternatives,
        reason=_reason(situation, seconds, actions, alternatives, price.moved_bytes),
    )


def _actions(
    situation: Situation,
    tuner: Tuner,
    names: tuple[str, ...],
    layout: Layout,
    structures: list[tuple[tuple[str, ...], Layout]],
) -> tuple[Action, ...]:
    """Levers that a layout pulls, each with what it saves alone."""
    cost, throughputs = situation.cost, situation.throughputs
    structural = tuple(name for name in names if REGISTRY[name].structural)
    base = next((b for n, b in structures if n == structural and len(b.replicas) == len(layout.replicas)), layout)
    base_seconds = cost.iteration_seconds(base, throughputs)
    idle = situation.idle_seconds
    actions = []
    for name in names:
        lever = REGISTRY[name]
        if lever.structural:
            gain = max(0.0, idle - base_seconds) if idle else 0.0
            text = lever.describe(situation.layout, layout) or "layout of the full shape"
        else:
            alone = cost.iteration_seconds(tuner.tuned(base, (name,)), throughputs)
            gain, text = max(0.0, base_seconds - alone), lever.describe(situation.layout, layout)
            text = text or lever.describe(base, layout)
        actions.append(Action(lever=name, description=text, gain_seconds=gain))
    return tuple(actions)


def _alternatives(situation: Situation, chosen: _Candidate, candidates: list[_Candidate]) -> tuple[Alternative, ...]:
    """Everything that lost, fastest first, each with why."""
    chosen_bytes = situation.price(chosen[2]).moved_bytes
    chosen_seconds = situation.cost.iteration_seconds(chosen[2], situation.throughputs)
    found: dict[str, Alternative] = {}
    for judged, names, layout in sorted(candidates, key=lambda c: (c[0], c[1])):
        name = " + ".join(names) or "do nothing"
        if layout.replicas == chosen[2].replicas or name in found:
            continue
        seconds = situation.cost.iteration_seconds(layout, situation.throughputs)
        if seconds > chosen_seconds * (1.0 + TIE):
            reason = f"{100.0 * (seconds / chosen_seconds - 1.0):.1f} % slower"
        elif judged > chosen[0] * (1.0 + TIE):
            reason = f"{100.0 * (1.0 - seconds / chosen_seconds):.1f} % faster, too little for its structural risk"
        else:
            moved = situation.price(layout).moved_bytes
            reason = f"as fast within {100.0 * TIE:.1f} %, but moves {moved / 1e6:.2f} MB, not {chosen_bytes / 1e6:.2f}"
        found[name] = Alternative(name=name, predicted_seconds=seconds, reason=reason)
    return tuple(found.values())[:_MAX_ALTERNATIVES]


def _reason(
    situation: Situation, seconds: float, actions: tuple[Action, ...], alternatives: tuple[Alternative, ...], moved: int
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
    bound = situation.healthy_seconds / situation.proportional_bound
    if situation.cost.workload.measured:
        if situation.dead:
            parts.append(f"Predicted {seconds:.4f} s per iteration.")
        else:
            parts.append(f"Predicted {seconds:.4f} s per iteration instead of {situation.idle_seconds:.4f} s.")
    else:
        parts.append("The job has no profile yet, so only the ratios of predictions mean anything.")
    parts.append(f"That is {100.0 * bound / seconds:.1f} % of the proportional bound; {moved / 1e6:.2f} MB move.")
    if alternatives:
        parts.append(f"Next best: {alternatives[0].name}, {alternatives[0].reason}.")
    return " ".join(parts)
