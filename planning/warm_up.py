"""What the planner runs as machine code, compiled or loaded before the first plan.

A plan is wanted when a device has failed, and must not wait for a compiler. The first process of a machine compiles,
and keeps it for those that follow (:mod:`evenkeel.numeric.compiled`); these load it. Images are built with it:
``python -m evenkeel.planning.warm_up``.
"""

import time
from dataclasses import replace

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation


def warm_up() -> float:
    """Compile or load; the seconds that it took. Blocks for so long; a second call takes none."""
    started = time.perf_counter()
    solve(_small_job())
    return time.perf_counter() - started


def _small_job() -> Situation:
    """A job of three devices that is small enough to look at all layouts and has too many splits for that.

    One device is slow, and the job may have several stages a rank.
    """
    block = BlockCost(
        forward_flops_per_token=1.0,
        forward_flops_per_squared_length=0.0,
        parameter_bytes=1,
        optimizer_bytes=1,
        max_width=2,
    )
    home = uniform_layout(num_blocks=16, tensor=1, pipeline=3, data=1, num_micro_batches=8)
    cost, speeds = CostModel(ModelSpec(blocks=(block,) * 16), ASSUMED_WORKLOAD), {0: 1.0, 1: 0.5, 2: 1.0}
    home = replace(home, interleavable=True)
    return Situation(layout=home, home=home, throughputs=speeds, cost=cost, holders=frozenset(speeds))


if __name__ == "__main__":
    print(f"ready after {warm_up():.1f} s")
