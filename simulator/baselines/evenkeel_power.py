"""Evenkeel in a machine park whose domains may draw more power than designed: the solver, and the lever power boost.

No engine here can set the power of a device, so live jobs are never offered this. The solver is asked as if ill domains
ran at a limit: a third, two thirds and all of what may be drawn. Of the plans within 0.5 % of the fastest the one that
draws least is taken, each with no more power than it needs; a change of power is no pause. With the sequence mix.
"""

from dataclasses import replace

from evenkeel.planning.solution import TIE
from evenkeel.simulator.baselines.evenkeel import EvenkeelMix
from evenkeel.simulator.fleet.operation import operation_seconds
from evenkeel.simulator.fleet.power import PowerBoost
from evenkeel.simulator.fleet.strategy import Answer, Question
from evenkeel.simulator.levers.power_boost import at_the_limit, boosted, extra_power

_STEPS = 3


class EvenkeelPower(EvenkeelMix):
    """The solver's plan with power, when it pays."""

    name = "Evenkeel + power"

    def answer(self, question: Question) -> Answer:
        """What :class:`EvenkeelMix` says where power is fixed; else the plan for the boosted fleet."""
        power = question.costs.power
        if power is None:
            return super().answer(question)
        found: list[tuple[float, float, Answer]] = []
        for step in range(1, _STEPS + 1):
            limit = 1.0 + (power.limit - 1.0) * step / _STEPS
            answer = self._under(question, replace(power, limit=limit))
            if answer.operation is None:
                return answer
            seconds = operation_seconds(question.cost, answer.operation, question.throughputs)
            found.append((seconds, extra_power(answer.operation, power, len(question.home.ranks)), answer))
        fastest = min(seconds for seconds, _, _ in found)
        return min((each for each in found if each[0] <= fastest * (1.0 + TIE)), key=lambda each: each[1])[2]

    def _under(self, question: Question, power: PowerBoost) -> Answer:
        limited = replace(question, costs=replace(question.costs, power=power))
        answer = super().answer(replace(limited, throughputs=at_the_limit(limited)))
        if answer.operation is None:
            return answer
        return replace(answer, operation=boosted(limited, answer.operation))
