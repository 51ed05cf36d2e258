"""Lever: power boost. Healthy devices of a domain that lost something run above their design power (NTP-PW).

Capability: ``power``, that is :attr:`evenkeel.simulator.fleet.strategy.Costs.power`; a machine park that does not name
it is
offered nothing. A plan is made as if every such domain ran at its limit; then each replica gets the least power, in
hundredths, with which it holds nobody up: the pace is that of the replicas that cannot be boosted, and where there are
none that of the healthy job. Nothing moves and nobody pauses.
A device that is slow itself is not boosted: what made it slow is not a lack of power.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Stage
from evenkeel.simulator.fleet.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.power import PowerBoost
from evenkeel.simulator.fleet.strategy import Question

CAPABILITY = "power"
_STEP = 0.01
_SAME = 1.0 + 1e-9


def boostable(question: Question) -> frozenset[int]:
    """Healthy ranks of the full shape whose domain (node) has somebody dead or slow; none where power is fixed."""
    if question.costs.power is None:
        return frozenset()
    size, throughputs = question.topology.devices_per_node, question.throughputs
    ill = {rank // size for rank in question.home.ranks if throughputs.get(rank, 0.0) < 1.0}
    return frozenset(r for r in question.home.ranks if r // size in ill and throughputs.get(r, 0.0) >= 1.0)


def at_the_limit(question: Question, throughputs: Mapping[int, float] | None = None) -> dict[int, float]:
    """Throughputs with every boostable rank at its limit; by default of those that the question names."""
    speeds = dict(question.throughputs if throughputs is None else throughputs)
    if question.costs.power is not None:
        most = question.costs.power.most_speed
        speeds |= {rank: speeds[rank] * most for rank in boostable(question)}
    return speeds


def boosted(question: Question, operation: Operation) -> Operation:
    """The operation with the least power that lets it keep pace; unchanged where it cannot be or need not be.

    Args:
        question: Who is ill, and whether the machine park has the lever.
        operation: How the job is to run; what it says of power is forgotten.
    """
    bare = replace(operation, boosts=())
    ranks = boostable(question) & bare.ranks
    if question.costs.power is None or not ranks or not bare.is_plain:
        return bare
    return replace(bare, boosts=tuple(sorted(_least(question, bare, ranks, question.costs.power).items())))


def _least(question: Question, operation: Operation, ranks: frozenset[int], power: PowerBoost) -> dict[int, float]:
    """Factor on the speed of each boosted rank."""
    healthy = operation_seconds(question.cost, operation_of(question.home), dict.fromkeys(question.home.ranks, 1.0))
    replicas = range(len(operation.replicas))
    plain = [d for d in replicas if not any(stage and ranks & set(stage.ranks) for stage in operation.replicas[d])]
    pace = _seconds(question, operation, plain, {}) if plain else healthy
    pace = max(pace, _seconds(question, operation, replicas, dict.fromkeys(ranks, power.most_speed))) * _SAME
    factors: dict[int, float] = {}
    for d, stages in enumerate(operation.replicas):
        own = sorted(ranks & {rank for stage in stages if stage for rank in stage.ranks})
        if own and _seconds(question, operation, (d,), {}) > pace:
            factors |= dict.fromkeys(own, _least_factor(question, operation, d, own, pace, power))
    return factors


def _least_factor(
    question: Question, operation: Operation, d: int, ranks: Sequence[int], pace: float, power: PowerBoost
) -> float:
    low, high = 0, max(1, round((power.limit - 1.0) / _STEP))

    def factor(step: int) -> float:
        return power.speed(min(power.limit, 1.0 + step * _STEP))

    while low + 1 < high:
        middle = (low + high) // 2
        if _seconds(question, operation, (d,), dict.fromkeys(ranks, factor(middle))) <= pace:
            high = middle
        else:
            low = middle
    return factor(high)


def _seconds(question: Question, operation: Operation, some: Sequence[int], factors: Mapping[int, float]) -> float:
    """Seconds of an iteration of some replicas, with these factors on speeds."""

    def speeds(stages: tuple[Stage | None, ...]) -> dict[int, float]:
        ranks = [rank for stage in stages if stage for rank in stage.ranks]
        return {rank: question.throughputs[rank] * factors.get(rank, 1.0) for rank in ranks}

    longest = 0.0
    for d in some:
        stages, scale = operation.replicas[d], operation.scales[d] if operation.scales else 1.0
        whole = tuple(stage for stage in stages if stage)
        longest = max(longest, scale * question.cost.makespan(whole, operation.quotas[d], speeds(stages), "1f1b"))
    return question.cost.total(longest)


def extra_power(operation: Operation, power: PowerBoost, num_devices: int) -> float:
    """Power beyond the design that a job draws, as a part of what all its devices are designed for."""
    return sum(power.power(factor) - 1.0 for _, factor in operation.boosts) / num_devices
