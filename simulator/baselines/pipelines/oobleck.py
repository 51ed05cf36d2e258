"""Oobleck: pipelines of different lengths from templates.

Source: SOSP'23 and its public code. Templates are over whole nodes: a node with a dead rank is dropped, with all of its
tensor groups. The others are covered by pipelines of different lengths; each length has a template (best split of the
layers), and the batch is split by pipeline speed. Deviations: templates by exact search instead of divide and conquer;
all partitions of the nodes into at most as many pipelines as home has replicas are tried by their predicted time; the
job goes on as long as one pipeline fits memory. Slow devices are not acted upon.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from evenkeel.layouts.cut import even_parts
from evenkeel.layouts.layout import Stage
from evenkeel.planning.levers.balance.micro_batch_quota import best_quotas
from evenkeel.simulator.baselines._cells import equal_stage, moved, whole_cells
from evenkeel.simulator.fleet.operation.operation import Grid, Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.strategy import Answer, Question


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
        cells, per_node = self._whole_nodes(question)
        if len(cells) == sum(len(replica.stages) for replica in home.replicas):
            operation = self.tuned(question, operation_of(home))
            return moved(question, operation)
        groups = [home.replicas[d].stages[s].ranks for d, s in cells]
        longest = min(len(home.replicas[0].stages), home.num_blocks) // per_node
        smallest = -(-smallest_pipeline(question) // per_node)
        candidates = []
        for count in range(1, len(home.replicas) + 1):
            for used in range(len(groups) // per_node, 0, -1):
                found = list(partitions(used, count, smallest, longest))
                candidates += [
                    self._instance(question, groups, [per_node * nodes for nodes in lengths]) for lengths in found
                ]
                if found:
                    break
        if not candidates:
            return Answer(operation=None)
        assumed = self.assumed_speeds(question)
        best = min(candidates, key=lambda operation: operation_seconds(question.cost, operation, assumed))
        return moved(question, self.tuned(question, best))

    @staticmethod
    def _whole_nodes(question: Question) -> tuple[list[tuple[int, int]], int]:
        """Groups of nodes without a dead rank, and groups of a node; a group that is no part of one is its own node."""
        home, size = question.home, question.topology.devices_per_node
        stages = home.replicas[0].stages
        width, per_node = len(stages[0].ranks), 1
        if len(stages) * width % size == 0 and size % width == 0:
            per_node = size // width
        whole = set(whole_cells(home, question.throughputs))
        nodes = [
            [(d, first + s) for s in range(per_node)]
            for d in range(len(home.replicas))
            for first in range(0, len(stages), per_node)
        ]
        return [cell for node in nodes if whole.issuperset(node) for cell in node], per_node

    def assumed_speeds(self, question: Question) -> dict[int, float]:
        """Speeds that plans reckon with: everybody alive is healthy."""
        return dict.fromkeys(question.throughputs, 1.0)

    def tuned(self, question: Question, operation: Operation) -> Operation:
        """What the system still adjusts: nothing."""
        return operation

    def _instance(self, question: Question, groups: list[tuple[int, ...]], lengths: Sequence[int]) -> Operation:
        grid: list[tuple[Stage, ...]] = []
        taken = 0
        for length in reversed(lengths):
            borders = list(accumulate(even_parts(question.home.num_blocks, length), initial=0))
            grid.append(tuple(equal_stage(borders[s], borders[s + 1], groups[taken + s]) for s in range(length)))
            taken += length
        assumed = self.assumed_speeds(question)

        def seconds_of(d: int, quota: int) -> float:
            return question.cost.makespan(grid[d], quota, assumed, "1f1b")

        quotas = best_quotas(seconds_of, even_parts(question.home.num_micro_batches, len(grid)))
        final: Grid = tuple(grid)
        return Operation(replicas=final, quotas=quotas)
