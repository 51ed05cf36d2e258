"""A choice among candidates told: gains of the levers that it pulls, what lost and why, as data and in words."""

from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.costs.price import Price
from evenkeel.planning.costs.risks import has_wide_stage, judged_seconds
from evenkeel.planning.levers import REGISTRY, Asked, asked_at
from evenkeel.planning.levers.balance.tuning import Tuner
from evenkeel.planning.pipelined.virtual import bare
from evenkeel.planning.repair import same
from evenkeel.planning.search.candidate import Candidate
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, Action, Alternative, Solution

_MAX_ALTERNATIVES = 8
_IDLE = "do nothing"


def answer(
    situation: Situation, tuner: Tuner, chosen: Candidate, price: Price, candidates: list[Candidate]
) -> Solution:
    """What the solver answers: what it predicts is what the cost model says, also of stages wider than usual.

    Args:
        situation: The question.
        tuner: With which candidates were tuned.
        chosen: The candidate that won.
        price: What going there costs.
        candidates: All that were weighed.
    """
    place = candidates.index(chosen)
    candidates = [replace(each, seconds=_seconds(situation, each.layout)) for each in candidates]
    chosen = candidates[place]
    changes = not same(chosen.layout, situation.layout)
    bound = situation.proportional_bound
    idle, shapes = 0.0 if situation.dead else _seconds(situation, situation.layout), _healthy_shapes(situation, chosen)
    well = situation.well
    healthy = min([situation.healthy_seconds, *map(well.seconds, shapes[1:])])
    actions = _actions(situation, tuner, chosen, idle) if changes else ()
    judged_gain = 0.0
    if changes and situation.all_is_well and not situation.dead:
        judged_gain = 1.0 - chosen.judged / judged_seconds(situation, situation.layout)
    replay = _replay(situation)
    if replay is not None:
        chosen, candidates = _replayed(situation, replay, chosen, candidates)
        idle = 0.0 if situation.dead else replay.seconds(situation.layout, situation.throughputs)
        healthy = min([replay.seconds(shape, well.throughputs) for shape in shapes])
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


def _seconds(situation: Situation, layout: Layout) -> float:
    """Predicted seconds of a layout; asked as the solver does where that is the same, since it has asked before."""
    return (situation if has_wide_stage(situation, layout) else situation.wary).seconds(layout)


def _healthy_shapes(situation: Situation, chosen: Candidate) -> list[Layout]:
    """The full shape with everybody healthy, and as it is polished in the ways in which the answer is."""
    home = situation.home
    polish = [lever for lever in asked_at(Asked.POLISH) if lever.describe(home, chosen.layout)]
    if not polish:
        return [home]
    return [home, *[shape for lever in polish for shape in lever.propose(situation.well, home)]]


def _replay(situation: Situation) -> Replay | None:
    """The job's recent iterations; None where they are not known, or where slow links make them others."""
    recent, layout = situation.cost.workload.recent, situation.layout
    if situation.links or not recent or len(recent[0].tokens) != layout.num_micro_batches:
        return None
    return Replay(situation.cost, layout.mix)


def _replayed(
    situation: Situation, replay: Replay, chosen: Candidate, candidates: list[Candidate]
) -> tuple[Candidate, list[Candidate]]:
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


def _actions(situation: Situation, tuner: Tuner, chosen: Candidate, idle: float) -> tuple[Action, ...]:
    """Levers that a layout pulls, each with what it saves alone."""
    base_seconds = _seconds(situation, chosen.base)
    before, after = bare(situation.layout), bare(chosen.layout)
    actions = []
    for name in chosen.levers:
        lever, is_over = REGISTRY[name], False
        phase = lever.asked[0]
        if phase in (Asked.SCHEDULE, Asked.POLISH):
            # A schedule is chosen before splits and quotas are sought for it.
            pulled = chosen.base if phase is Asked.SCHEDULE else chosen.layout
            without = lever.undone(situation.layout, pulled)
            is_over = without is situation.layout
            gain = (idle if is_over else _seconds(situation, without)) - _seconds(situation, pulled)
            text = lever.describe(situation.layout, chosen.layout)
        elif phase is Asked.TUNING:
            gain = base_seconds - _seconds(situation, tuner.tuned(chosen.base, (name,)))
            text = lever.describe(before, after) or lever.describe(chosen.base, after)
        else:
            gain = idle - base_seconds if idle else 0.0
            text = lever.describe(before, after) or "layout of the full shape"
        actions.append(Action(lever=name, description=text, gain_seconds=max(0.0, gain), is_over=is_over))
    return tuple(actions)


def _alternatives(
    situation: Situation, chosen: Candidate, price: Price, candidates: list[Candidate]
) -> tuple[Alternative, ...]:
    """What lost, fastest first, each with why."""
    found: dict[str, Alternative] = {}
    for _, levers, index in sorted([(c.judged, c.levers, index) for index, c in enumerate(candidates)]):
        other, name = candidates[index], " + ".join(levers) or _IDLE
        if other is chosen or name in found:
            continue
        if other.excess_bytes:
            reason = f"a device lacks {_bytes(other.excess_bytes)} of memory"
        elif other.seconds > chosen.seconds * (1.0 + TIE):
            reason = f"{100.0 * (other.seconds / chosen.seconds - 1.0):.1f} % slower"
        elif other.judged > chosen.judged * (1.0 + TIE):
            gain = 100.0 * (1.0 - other.seconds / chosen.seconds)
            if has_wide_stage(situation, other.layout):
                reason = f"{gain:.1f} % faster only if stages wider than the full shape's lose nothing"
            else:
                reason = f"{gain:.1f} % faster, too little for its structural risk"
        else:
            more = situation.price(other.layout).moved_bytes - price.moved_bytes
            but = "is no faster" if chosen.levers else "changes more"
            but = f"moves {_bytes(more)} more" if more > 0.0 else but
            reason = f"as fast within {100.0 * TIE:.1f} %, but {but}"
        found[name] = Alternative(name=name, predicted_seconds=other.seconds, reason=reason)
    # What would be if nothing was done is always told.
    told = list(found.values())
    idle = [other for other in told[_MAX_ALTERNATIVES:] if other.name == _IDLE]
    return (*told[: _MAX_ALTERNATIVES - len(idle)], *idle)


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} bytes"


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
