"""Nonuniform tensor parallelism with power boost (NTP-PW): a broken domain keeps its batch and draws more power.

Source: arXiv 2504.06095. As :mod:`evenkeel.simulator.baselines.ntp`, where a domain that lost devices runs the others
at up to
the limit of :class:`evenkeel.simulator.fleet.power.PowerBoost`; only what that does not make up for is a smaller
batch. In a machine park without the capability it is NTP.
"""

from collections.abc import Mapping

from evenkeel.simulator.baselines.ntp import NonuniformTensor
from evenkeel.simulator.fleet.operation import Operation
from evenkeel.simulator.fleet.strategy import Question
from evenkeel.simulator.levers.power_boost import at_the_limit, boosted


class NonuniformTensorPower(NonuniformTensor):
    """Any width, packed domains, power, then quotas by speed."""

    name = "NTP-PW"

    def _assumed(self, question: Question) -> Mapping[int, float]:
        return at_the_limit(question, super()._assumed(question))

    def _powered(self, question: Question, operation: Operation) -> Operation:
        return boosted(question, operation)
