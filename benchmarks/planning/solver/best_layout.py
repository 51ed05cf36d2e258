"""What the solver answers for devices of known speed, for the benchmarks that play its layouts live. Pure."""

from collections.abc import Mapping

from evenkeel.demo.script.job import MainJob
from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation


def best_layout(job: MainJob, home: Layout, speeds: Mapping[int, float], workload: Workload) -> Layout:
    """The best layout for a job in its full shape.

    Args:
        job: The job.
        home: Its full shape, with what its engine is said to be capable of.
        speeds: Throughput of the devices that are not healthy, by rank.
        workload: What an iteration is.
    """
    throughputs = {rank: speeds.get(rank, 1.0) for rank in job.layout.ranks}
    situation = Situation(
        layout=job.layout,
        home=home,
        throughputs=throughputs,
        cost=CostModel(job.model, workload),
        holders=frozenset(throughputs),
    )
    return solve(situation).layout
