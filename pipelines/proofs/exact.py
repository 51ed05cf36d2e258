"""Proven optima of small cases by CP-SAT: what the generator is judged by where it can be.

With no communication, no fixed number of stages and no cost per stage, stages of one layer each lose nothing: whatever
coarser stages do, single layers can do at the same times. So the choices are the devices of the layers (all of them are
tried, equal devices once), or with a fixed number of stages the cuts. Each choice whose own bound is below the best
plan known is solved by constraint programming until it is better or proven not to be. Of many cuts only those are
written down that the work of the devices does not rule out (:mod:`evenkeel.pipelines.proofs.cut_choices`), those first
that a list schedule likes; where these are too many too, the cuts become variables of one model. Needs the extra
``pipelines`` (ortools).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice, pairwise
from math import comb, inf

import numpy as np

from evenkeel.pipelines.case import Case, PlacementRule, allowed
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.proofs.bounds import lower_bound
from evenkeel.pipelines.proofs.cut_choices import cuts_below
from evenkeel.pipelines.proofs.exact_model import prove_cuts, prove_fixed
from evenkeel.pipelines.proofs.whole_numbers import common_scale, small_fraction
from evenkeel.pipelines.search.climbing.improve import first_priorities, improve
from evenkeel.pipelines.search.dispatching.network import network_of
from evenkeel.pipelines.search.starts.assignments import Assignment
from evenkeel.pipelines.search.starts.balance import Balance

MOST_CHOICES = 3000
MOST_CUTS = 20_000


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


def prove(
    case: Case, plan: Plan, *, seconds_per_choice: float = 20.0, is_over: Callable[[], bool] = lambda: False
) -> Proof:
    """Betters a plan until it is proven to be the best.

    Args:
        case: The case.
        plan: A plan to begin with; the better, the faster.
        seconds_per_choice: Time for one assignment; whatever is open after it leaves the plan unproven.
        is_over: Whether to end with the best so far, unproven; asked before each assignment.

    Raises:
        ValueError: The case is too large, or its times are no small fractions.
    """
    balance, num_choices = Balance(case), _num_choices(case)
    if num_choices <= MOST_CHOICES:
        choices = sorted(filter(balance.fits, _choices(case)), key=balance.score)
    elif case.placement is not PlacementRule.CYCLIC or case.stages is None:
        raise ValueError(f"{num_choices} assignments are too many to try; at most {MOST_CHOICES}")
    else:
        return _prove_many(case, plan, seconds_per_choice, is_over)
    proof = _solved(case, plan, choices, seconds_per_choice, is_over)
    return replace(proof, choices=num_choices)


def _prove_many(case: Case, plan: Plan, seconds_per_choice: float, is_over: Callable[[], bool]) -> Proof:
    """Cuts that are too many to try all: those of the least work first, until what is found rules out the rest."""
    balance, num_choices, floor = Balance(case), _num_choices(case), lower_bound(case)
    solved, value = 0, evaluate(case, plan).makespan
    while True:
        below = value
        while len(choices := list(islice(cuts_below(case, below), MOST_CUTS + 1))) > MOST_CUTS:
            below -= (below - floor) / 8.0
        choices = sorted(filter(balance.fits, choices), key=partial(_listed, case))
        proof = _solved(case, plan, choices, seconds_per_choice, is_over)
        solved += proof.solved
        if proof.makespan <= below or is_over():
            is_optimal = proof.is_optimal and proof.makespan <= below
            return replace(proof, choices=num_choices, solved=solved, is_optimal=is_optimal)
        if proof.makespan < value:
            plan, value = proof.plan, proof.makespan
            continue
        answer = prove_cuts(case, _scale(case), value, seconds_per_choice)
        best = answer.plan or plan
        return Proof(
            plan=best,
            makespan=evaluate(case, best).makespan,
            is_optimal=answer.is_proven,
            choices=num_choices,
            solved=solved + 1,
        )


def _solved(
    case: Case, plan: Plan, choices: Sequence[Assignment], seconds_per_choice: float, is_over: Callable[[], bool]
) -> Proof:
    """The best plan of some assignments, in this order."""
    best, value, balance = plan, evaluate(case, plan).makespan, Balance(case)
    solved, is_optimal, floor, scale = 0, True, lower_bound(case), _scale(case)
    for choice in choices:
        if value <= floor:
            break
        if balance.score(choice)[0] >= value:
            continue
        if is_over():
            is_optimal = False
            break
        solved += 1
        network = network_of(case, choice.partition, choice.placement)
        answer = prove_fixed(network, case.memory_limit, scale, value, seconds_per_choice)
        is_optimal = is_optimal and answer.is_proven
        if answer.plan is not None:
            best, value = answer.plan, evaluate(case, answer.plan).makespan
    return Proof(plan=best, makespan=value, is_optimal=is_optimal, choices=len(choices), solved=solved)


def _listed(case: Case, choice: Assignment) -> float:
    """How long a list schedule of an assignment takes."""
    stages = network_of(case, choice.partition, choice.placement).stages
    limit = inf if case.memory_limit is None else allowed(case.memory_limit)
    return improve(stages, first_priorities(stages), inf, limit, 2, 0.0, np.random.default_rng(0), inf).makespan


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
    if case.stage_bias is not None:
        for role in (case.stage_bias.first, case.stage_bias.middle, case.stage_bias.last):
            times += [role.forward, role.backward_input]
    speeds = [small_fraction(speed, 1000) for speed in set(case.speeds)]
    return common_scale(small_fraction(time) / speed for time in times for speed in speeds)
