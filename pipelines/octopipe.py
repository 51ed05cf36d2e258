"""The rules of OctoPipe (AdaPtis, arXiv 2509.23722) as a baseline, from their description.

What is described and done here: a bank of balanced partitions for each number of virtual stages; a beam of
placements in circles with swaps; an order of work by the dispatch rule (backward first, then forward, then weights,
the older micro-batch first);
then rounds of tuning that look at the bubbles of the devices. Where the devices' bubbles differ by more than the
smallest layer, a layer crosses a cut; else, where the idle time at the start and end exceeds that between, two stages
swap devices; else the order is tuned by delaying weights. Only strict improvements are kept.

Deviations: the published search also exempts bubbles that communication overlaps, which cases without bandwidth do not
have; the beams' sizes are arguments. With a memory limit an operation is admitted by the rule of
:mod:`evenkeel.pipelines.search.dispatching.dispatch`, which never gets stuck; the original's admission is not described
fully.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import inf

from evenkeel.pipelines.case import Case, PlacementRule, allowed
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.search.climbing.improve import first_priorities
from evenkeel.pipelines.search.dispatching.dispatch import Listed, list_schedule
from evenkeel.pipelines.search.dispatching.network import Network, network_of, plan_of
from evenkeel.pipelines.search.starts.assignments import Assignment, proposals
from evenkeel.pipelines.search.starts.balance import Balance
from evenkeel.pipelines.search.tables import Floats

_BEAM = 32  # balanced partitions and placements of each number of stages that are run in full
_ROUNDS = 40  # of tuning


@dataclass(frozen=True, slots=True)
class _Candidate:
    assignment: Assignment
    network: Network
    schedule: Listed


def octopipe(case: Case, *, is_over: Callable[[], bool] = lambda: False) -> Plan:
    """The plan that the rules of OctoPipe lead to.

    Args:
        case: The case.
        is_over: Whether to end with what there is.

    Raises:
        ValueError: No partition of the bank fits the memory limit.
    """
    balance = Balance(case)
    best: _Candidate | None = None
    for start in proposals(case):
        if any(device != stage % case.devices for stage, device in enumerate(start.placement)):
            continue
        for assignment in _bank(case, balance, start):
            if is_over():
                break
            best = _better(case, balance, best, assignment)
    if best is None:
        raise ValueError(f"no balanced partition fits the memory limit {case.memory_limit}; raise it")
    for _ in range(_ROUNDS):
        tuned = best
        for assignment in _moves(case, best):
            if is_over():
                break
            tuned = _better(case, balance, tuned, assignment) or tuned
        if tuned is best:
            break
        best = tuned
    return plan_of(best.network, best.schedule.starts.tolist())


def _bank(case: Case, balance: Balance, start: Assignment) -> Iterator[Assignment]:
    """Partitions about as balanced as single moves of a layer can make them, and their placements by swaps."""
    seen, front = {start}, [start]
    for _ in range(6):
        wider = {move for each in front for move in _partition_moves(each)} - seen
        seen |= wider
        front = sorted(wider, key=lambda each: (balance.score(each), each.partition))[: _BEAM // 4]
    best = sorted(seen, key=lambda each: (balance.score(each), each.partition))[: _BEAM // 2]
    yield from best
    if case.placement is PlacementRule.CYCLIC:
        return
    swaps = {swap for each in best[:2] for swap in _placement_moves(each)}
    yield from sorted(swaps, key=lambda each: (balance.score(each), each.placement))[: _BEAM // 2]


def _better(case: Case, balance: Balance, best: _Candidate | None, assignment: Assignment) -> _Candidate | None:
    if not balance.fits(assignment):
        return best
    network = network_of(case, assignment.partition, assignment.placement)
    limit = inf if case.memory_limit is None else allowed(case.memory_limit)
    for priorities in (first_priorities(network.stages), _weights_early(network)):
        schedule = list_schedule(network.stages, priorities, limit, inf, False, inf)
        if best is None or schedule.makespan < best.schedule.makespan:
            best = _Candidate(assignment, network, schedule)
    return best


def _weights_early(network: Network) -> Floats:
    """The dispatch rule with weights before forwards: less memory is held, and later gaps have less to fill them."""
    priorities = first_priorities(network.stages)
    priorities[2 * network.block :] -= 1.5e9
    return priorities


def _moves(case: Case, best: _Candidate) -> Iterator[Assignment]:
    """What the bubbles say should be tuned: the partition, the placement, or nothing but the order."""
    network, schedule = best.network, best.schedule
    starts: list[list[tuple[float, float]]] = [[] for _ in range(case.devices)]
    for op, start in enumerate(schedule.starts.tolist()):
        starts[network.device[op]].append((start, start + network.durations[op]))
    bubbles, boundaries = [], []
    for spans in starts:
        work = sum(end - start for start, end in spans)
        bubbles.append(schedule.makespan - work)
        boundaries.append(
            min(start for start, _ in spans) + schedule.makespan - max(end for _, end in spans)
            if spans
            else schedule.makespan
        )
    smallest = min(layer.forward + layer.backward_input for layer in case.layers)
    if max(bubbles) - min(bubbles) > smallest:
        yield from _partition_moves(best.assignment)
    elif sum(boundaries) > sum(bubbles) - sum(boundaries) and case.placement is PlacementRule.ANY:
        yield from _placement_moves(best.assignment)


def _partition_moves(assignment: Assignment) -> Iterator[Assignment]:
    for cut in range(len(assignment.partition) - 1):
        for giver, taker in ((cut, cut + 1), (cut + 1, cut)):
            sizes = list(assignment.partition)
            if sizes[giver] > 1:
                sizes[giver] -= 1
                sizes[taker] += 1
                yield Assignment(tuple(sizes), assignment.placement)


def _placement_moves(assignment: Assignment) -> Iterator[Assignment]:
    for a, b in combinations(range(len(assignment.placement)), 2):
        devices = list(assignment.placement)
        if devices[a] != devices[b]:
            devices[a], devices[b] = devices[b], devices[a]
            yield Assignment(assignment.partition, tuple(devices))
