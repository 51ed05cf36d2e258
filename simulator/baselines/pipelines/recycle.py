"""ReCycle: the micro-batches of a dead stage go to the same stage of other replicas.

Source: SOSP'24, arXiv 2405.14009. A tensor group with a dead rank is dropped whole. Its micro-batches are routed round
robin to live peers of the same stage (adaptive pipelining); the extra work hides in bubbles because the backward is
split (decoupled backprop) and stages step on their own (staggered optimizer). Failures are spread evenly over the
stages first (failure normalisation), so the job runs as long as there are as many whole groups as stages. Deviations:
the schedule comes from a list scheduler with twice the live activations instead of a MILP; memory is not limited
further; healthy jobs run plain 1F1B, as in ResiHP's comparison, which gives one fault-free figure for all systems.
Slow devices are not acted upon.
"""

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.simulator.baselines._cells import equal_stage, moved, whole_cells
from evenkeel.simulator.fleet.operation.network import Discipline, Routes
from evenkeel.simulator.fleet.operation.operation import Grid, Operation, operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question

DECOUPLED = Discipline(decoupled=True)


def normalised_grid(home: Layout, whole: list[tuple[int, int]]) -> Grid | None:
    """Whole groups in place, with the fewest moves that spread the holes evenly over stages; None = too few groups.

    A hole in a stage that has more than its share is filled by a group of a stage that has fewer holes.
    """
    num_replicas, num_stages = len(home.replicas), len(home.replicas[0].stages)
    if len(whole) < num_stages:
        return None
    cells: dict[tuple[int, int], tuple[int, ...]] = {(d, s): home.replicas[d].stages[s].ranks for d, s in whole}

    def count(s: int) -> int:
        return sum(1 for _, stage in cells if stage == s)

    while True:
        fewest = min(range(num_stages), key=lambda s: (count(s), s))
        most = max(range(num_stages), key=lambda s: (count(s), -s))
        if count(most) - count(fewest) <= 1:
            break
        source = max(cell for cell in cells if cell[1] == most)
        target = next((d, fewest) for d in range(num_replicas) if (d, fewest) not in cells)
        cells[target] = cells.pop(source)

    def stage_at(d: int, s: int) -> Stage | None:
        ranks, like = cells.get((d, s)), home.replicas[d].stages[s]
        return None if ranks is None else equal_stage(like.first_block, like.stop_block, ranks)

    return tuple(tuple(stage_at(d, s) for s in range(num_stages)) for d in range(num_replicas))


def rerouted(grid: Grid, quotas: tuple[int, ...]) -> Routes:
    """Executors of every stage of every micro-batch: its own replica, or live peers round robin."""
    num_stages = len(grid[0])
    turn = [0] * num_stages
    routes = []
    for d, quota in enumerate(quotas):
        micro_batches = []
        for _ in range(quota):
            executors = []
            for s in range(num_stages):
                if grid[d][s] is not None:
                    executors.append(d)
                    continue
                live = [e for e in range(len(grid)) if grid[e][s] is not None]
                executors.append(live[turn[s] % len(live)])
                turn[s] += 1
            micro_batches.append(tuple(executors))
        routes.append(tuple(micro_batches))
    return tuple(routes)


class ReCycle:
    """Round-robin rerouting of dead stages."""

    name = "ReCycle"

    def answer(self, question: Question) -> Answer:
        """The normalised grid with its routes."""
        home = question.home
        grid = normalised_grid(home, whole_cells(home, question.throughputs))
        if grid is None:
            return Answer(operation=None)
        quotas = self.quotas(question, grid)
        operation = operation_of(home)
        if any(stage is None for replica in grid for stage in replica):
            operation = Operation(replicas=grid, quotas=quotas, routes=rerouted(grid, quotas), discipline=DECOUPLED)
        elif quotas != operation.quotas:
            operation = Operation(replicas=grid, quotas=quotas)
        return moved(question, operation)

    def quotas(self, question: Question, grid: Grid) -> tuple[int, ...]:
        """Micro-batches that belong to each replica: those of the home layout."""
        return tuple(replica.num_micro_batches for replica in question.home.replicas)
