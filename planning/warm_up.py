"""What the planner runs as machine code, compiled or loaded before the first plan.

A plan is wanted when a device has failed, and must not wait for a compiler. The first process of a machine compiles,
and keeps it for those that follow (:mod:`evenkeel.numeric.compiled`); these load it. Images are built with it:
``python -m evenkeel.planning.warm_up``.
"""

import math
import time

import numpy as np

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.pipelines.case import Case, Layer
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.generate import generate
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel
from evenkeel.planning.exact.every_layout import look_at_all
from evenkeel.planning.levers.balance.splits import climbed, least_slowest, parts_of, ranges_of, split_candidates
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.pipelined.pipeline_bound import pipeline_bound
from evenkeel.planning.situation import Situation


def warm_up() -> float:
    """Compile or load; the seconds that it took. Blocks for so long; a second call takes none."""
    started = time.perf_counter()
    prefix, borders = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 6.0]]), np.array([0, 1, 3])
    parts, transfers = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), np.array([0.0])
    pipeline_makespan(parts, 2, transfers)
    pipeline_bound(parts.sum(axis=1), 2, 0.5, 0.5, 0.0, math.inf)
    seconds = ranges_of(prefix)
    parts_of(seconds, borders)
    least_slowest(seconds)
    climbed(seconds, borders, 2, 0.5, 0.0)
    split_candidates(seconds, 2)
    small = _small_job()
    look_at_all(small.wary, 1.0, 0.0, "1f1b")
    layer = Layer(forward=1.0, backward_input=1.0, backward_weight=1.0)
    generate(Case(name="first", devices=2, micro_batches=2, layers=(layer,) * 5), Budget(100))
    return time.perf_counter() - started


def _small_job() -> Situation:
    """A job of two devices, one of them slow."""
    block = BlockCost(
        forward_flops_per_token=1.0,
        forward_flops_per_squared_length=0.0,
        parameter_bytes=1,
        optimizer_bytes=1,
        max_width=2,
    )
    home = uniform_layout(num_blocks=2, tensor=1, pipeline=1, data=2, num_micro_batches=2)
    cost = CostModel(ModelSpec(blocks=(block, block)), ASSUMED_WORKLOAD)
    return Situation(
        layout=home, home=home, throughputs={0: 1.0, 1: 0.5}, cost=cost, holders=frozenset((0, 1)), device_bytes=10.0
    )


if __name__ == "__main__":
    print(f"ready after {warm_up():.1f} s")
