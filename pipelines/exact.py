"""Proven optima of small cases by CP-SAT: what the generator is judged by where it can be.

With no communication, no fixed number of stages and no cost per stage, stages of one layer each lose nothing: whatever
coarser stages do, single layers can do at the same times. So the choices are the devices of the layers (all of them are
tried, equal devices once), or with a fixed number of stages the cuts. Each choice whose own bound is below the best
plan known is solved by constraint programming until it is better or proven not to be. Where the cuts are too many to
try one by one
they become variables of one model. Needs the extra ``pipelines`` (ortools).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import comb, lcm

from pipelines.bounds import lower_bound
from pipelines.case import Case, PlacementRule
from pipelines.evaluate import evaluate
from pipelines.exact_model import prove_cuts, prove_fixed
from pipelines.plan import Plan
from pipelines.search.assignments import Assignment, Balance
from pipelines.search.network import network_of, plan_of

MOST_CHOICES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found out about a case.

    Attributes:
        plan: The best plan known.
        makespan: Its makespan.
        is_optimal: Whether no plan is shorter; false if time ran out.
        choices: Assignments that there are.
        solved: Assignments that bounds alone could not rule out.
    """

    plan: Plan
    makespan: float
    is_optimal: bool
    choices: int
    solved: int


def prove(case: Case, plan: Plan, *, seconds_per_choice: float = 20.0) -> Proof:
    """Betters a plan until it is proven to be the best.

    Args:
        case: The case.
        plan: A plan to begin with; the better, the faster.
        seconds_per_choice: Time for one assignment; whatever is open after it leaves the plan unproven.

    Raises:
        ValueError: The case is too large, or its times are no small fractions.
    """
    best, value = plan, evaluate(case, plan).makespan
    scale = _scale(case)
    if case.placement is PlacementRule.CYCLIC and case.stages is not None and _num_choices(case) > MOST_CHOICES:
        answer = prove_cuts(case, scale, value, seconds_per_choice)
        if answer.plan is not None:
            best, value = answer.plan, evaluate(case, answer.plan).makespan
        return Proof(plan=best, makespan=value, is_optimal=answer.is_proven, choices=_num_choices(case), solved=1)
    if _num_choices(case) > MOST_CHOICES:
        raise ValueError(f"{_num_choices(case)} assignments are too many to try; at most {MOST_CHOICES}")
    balance = Balance(case)
    choices = sorted(filter(balance.fits, _choices(case)), key=balance.score)
    solved, is_optimal, floor = 0, True, lower_bound(case)
    for choice in choices:
        if value <= floor:
            break
        if balance.score(choice)[0] >= value:
            continue
        solved += 1
        network = network_of(case, choice.partition, choice.placement)
        answer = prove_fixed(network, case.memory_limit, scale, value, seconds_per_choice)
        is_optimal = is_optimal and answer.is_proven
        if answer.starts is not None:
            found = plan_of(network, answer.starts)
            best, value = found, evaluate(case, found).makespan
    return Proof(plan=best, makespan=value, is_optimal=is_optimal, choices=len(choices), solved=solved)


def _num_choices(case: Case) -> int:
    num_layers = len(case.layers)
    if case.stages is not None and case.placement is PlacementRule.CYCLIC:
        return comb(num_layers - 1, case.stages - 1)
    return int(case.devices**num_layers)


def _choices(case: Case) -> Iterator[Assignment]:
    num_layers = len(case.layers)
    if case.stages is not None and case.placement is PlacementRule.CYCLIC:
        placement = tuple(stage % case.devices for stage in range(case.stages))
        for cuts in combinations(range(1, num_layers), case.stages - 1):
            edges = (0, *cuts, num_layers)
            yield Assignment(tuple(b - a for a, b in pairwise(edges)), placement)
        return
    if case.stages is not None or case.stage_bias is not None:
        raise ValueError("optima are proven for a free number of stages without stage costs, or for cyclic placement")
    for placement in _placements(num_layers, case.devices, case.has_equal_devices):
        yield Assignment((1,) * num_layers, placement)


def _placements(num_layers: int, devices: int, are_equal: bool) -> Iterator[tuple[int, ...]]:
    """All placements of layers on devices; of equal devices only the order of first use counts."""
    if not num_layers:
        yield ()
        return
    for rest in _placements(num_layers - 1, devices, are_equal):
        used = max(rest, default=-1) + 1 if are_equal else devices
        for device in range(min(devices, used + 1) if are_equal else devices):
            yield (*rest, device)


def _scale(case: Case) -> int:
    """What makes every time a whole number."""
    times = [case.communication]
    for layer in case.layers:
        times += [layer.forward, layer.backward_input, layer.backward_weight]
    speeds = [Fraction(speed).limit_denominator(1000) for speed in set(case.speeds)]
    parts = [Fraction(time).limit_denominator(10**6) / speed for time in times for speed in speeds]
    scale = lcm(*(part.denominator for part in parts))
    if scale > 10**6:
        raise ValueError("times and speeds must be small fractions for a proof; round them")
    return scale
