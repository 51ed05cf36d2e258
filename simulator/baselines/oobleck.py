"""Oobleck: pipelines of different lengths from templates.

Source: SOSP'23 and its public code. Tensor groups are the nodes of the templates: one with a dead rank is dropped.
The whole groups are covered by pipelines of different lengths; each length has a template (best split of the layers),
and the batch is split by pipeline speed. Deviations: templates by exact search instead of divide and conquer; all
partitions of the groups into at most as many pipelines as home has replicas are tried by their predicted time; the job
goes on as long as one pipeline fits memory. Slow devices are not acted upon.
"""

import math
from collections.abc import Iterator

from evenkeel.layouts.layout import Stage
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.simulator.baselines._cells import equal_stage, even_borders, spread, whole_cells
from evenkeel.simulator.fleet.operation import Grid, Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.strategy import Answer, Question
from evenkeel.simulator.fleet.transition import transition_seconds


def partitions(total: int, parts: int, smallest: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Ways to write ``total`` as ``parts`` ascending numbers between ``smallest`` and ``largest``.

    >>> list(partitions(7, 2, 2, 4))
    [(3, 4)]
    """
    if parts == 0:
        if total == 0:
            yield ()
        return
    for first in range(smallest, min(largest, total // parts) + 1):
        for rest in partitions(total - first, parts - 1, first, largest):
            yield (first, *rest)


def smallest_pipeline(question: Question) -> int:
    """Groups that the model's state needs at least."""
    state = sum(block.parameter_bytes + block.optimizer_bytes for block in question.cost.model.blocks)
    width = len(question.home.replicas[0].stages[0].ranks)
    return max(1, math.ceil(state / (width * question.costs.device_bytes)))


class Oobleck:
    """Templates over whole groups."""

    name = "Oobleck"

    def answer(self, question: Question) -> Answer:
        """The fastest set of templates."""
        home = question.home
        cells = whole_cells(home, question.throughputs)
        if len(cells) == sum(len(replica.stages) for replica in home.replicas):
            operation = self.tuned(question, operation_of(home))
            return self._answer(question, operation)
        groups = [home.replicas[d].stages[s].ranks for d, s in cells]
        longest = min(len(home.replicas[0].stages), home.num_blocks)
        candidates = []
        for count in range(1, len(home.replicas) + 1):
            for used in range(len(groups), max(0, len(groups) - longest), -1):
                found = list(partitions(used, count, smallest_pipeline(question), longest))
                candidates += [self._instance(question, groups, lengths) for lengths in found]
                if found:
                    break
        if not candidates:
            return Answer(operation=None)
        assumed = self.assumed_speeds(question)
        best = min(candidates, key=lambda operation: operation_seconds(question.cost, operation, assumed))
        return self._answer(question, self.tuned(question, best))

    def assumed_speeds(self, question: Question) -> dict[int, float]:
        """Speeds that plans reckon with: everybody alive is healthy."""
        return dict.fromkeys(question.throughputs, 1.0)

    def tuned(self, question: Question, operation: Operation) -> Operation:
        """What the system still adjusts: nothing."""
        return operation

    def _instance(self, question: Question, groups: list[tuple[int, ...]], lengths: tuple[int, ...]) -> Operation:
        grid: list[tuple[Stage, ...]] = []
        taken = 0
        for length in reversed(lengths):
            borders = even_borders(question.home.num_blocks, length)
            grid.append(tuple(equal_stage(borders[s], borders[s + 1], groups[taken + s]) for s in range(length)))
            taken += length
        assumed = self.assumed_speeds(question)

        def seconds_of(d: int, quota: int) -> float:
            return question.cost.makespan(grid[d], quota, assumed, "1f1b")

        quotas = best_quotas(seconds_of, spread(question.home.num_micro_batches, len(grid)))
        final: Grid = tuple(grid)
        return Operation(replicas=final, quotas=quotas)

    def _answer(self, question: Question, operation: Operation) -> Answer:
        pause = transition_seconds(question.cost.model, question.current, operation, question.costs)
        return Answer(operation=operation, pause_seconds=pause)
