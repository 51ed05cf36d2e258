"""Nonuniform tensor parallelism: a domain goes on at any smaller width.

Source: arXiv 2504.06095. A tensor group with f dead devices runs with n - f equal shards; groups are packed so that the
most broken share a replica; the replica's batch shrinks to keep pace, the others take it over. A change is a restart
from a checkpoint. Deviations: the global batch is kept (fixed-batch variant); the reshard around the gradient exchange
is not charged (published below 1 %, up to 4 % of backward); slow devices are not acted upon. Power boost
(NTP-PW) is in ``benchmarks/planning/papers/availability.py``.
"""

from dataclasses import replace

from evenkeel.layouts.cut import even_parts
from evenkeel.simulator.baselines._cells import balanced_quotas, equal_stage, live_ranks, rolled_back
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question


class NonuniformTensor:
    """Any width, packed domains, quotas by speed."""

    name = "NTP"

    def answer(self, question: Question) -> Answer:
        """Domains sorted by what is left of them, replica by replica."""
        home = question.home
        num_stages = len(home.replicas[0].stages)
        domains = [live_ranks(stage, question.throughputs) for replica in home.replicas for stage in replica.stages]
        if set(home.ranks) <= question.throughputs.keys():
            operation = operation_of(home)
        else:
            usable = sorted((domain for domain in domains if domain), key=lambda ranks: (-len(ranks), ranks))
            count = len(usable) // num_stages
            if not count:
                return Answer(operation=None)
            grid = tuple(
                tuple(
                    equal_stage(like.first_block, like.stop_block, usable[d * num_stages + s])
                    for s, like in enumerate(home.replicas[0].stages)
                )
                for d in range(count)
            )
            blind = replace(question, throughputs=dict.fromkeys(question.throughputs, 1.0))
            quotas = balanced_quotas(blind, grid, even_parts(home.num_micro_batches, count))
            operation = Operation(replicas=grid, quotas=quotas)
        return rolled_back(question, operation)
