"""Situations to plan for."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.pipelined.makespan import pipeline_makespan
from evenkeel.planning.situation import Situation


def situation_of(
    home: Layout,
    *,
    speeds: dict[int, float] | None = None,
    dead: tuple[int, ...] = (),
    layout: Layout | None = None,
    heads: int = 12,
    device_bytes: float | None = None,
) -> Situation:
    """A job of this shape with these slow and dead ranks; ``layout`` is in force, by default the full shape."""
    layout = layout or home
    throughputs = {rank: 1.0 for rank in (*home.ranks, *home.standbys) if rank not in dead} | (speeds or {})
    return Situation(
        layout=layout,
        home=home,
        throughputs=throughputs,
        cost=CostModel(gpt(home.num_blocks - 2, heads), WORKLOAD),
        holders=frozenset(throughputs) & frozenset(layout.ranks),
        device_bytes=device_bytes,
    )


def one_f_one_b_makespan(
    stages: Sequence[tuple[float, float]], num_micro_batches: int, transfers: float | Sequence[float]
) -> float:
    """What the planner predicts for a 1F1B pipeline of (forward, backward) seconds; transfers alike or by border."""
    parts = np.array([(*stage, 0.0) for stage in stages])
    borders = np.broadcast_to(np.array(transfers, dtype=np.float64), len(stages) - 1).copy()
    return pipeline_makespan(parts, num_micro_batches, borders)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Jobs of many shapes with some dead and some slow ranks."""
    tensor, pipeline, data = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    num_micro_batches = draw(st.integers(data, 4 * data + 3))
    num_layers = draw(st.integers(max(1, pipeline - 1), 8))
    home = uniform_layout(
        num_blocks=num_layers + 2, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=num_micro_batches
    )
    if draw(st.booleans()):
        quotas = [replica.num_micro_batches for replica in home.replicas]
        home = replace(home, mix=mix_for(gpt(num_layers), quotas, num_stages=pipeline))
    if draw(st.booleans()):
        home = replace(home, schedules=("1f1b", "zb-h1"))
    ranks = st.sampled_from(home.ranks)
    dead = draw(st.sets(ranks, max_size=max(0, len(home.ranks) // 3)))
    slow = draw(st.dictionaries(ranks, st.floats(0.2, 1.0), max_size=3))
    return situation_of(
        home,
        dead=tuple(dead),
        speeds={r: p for r, p in slow.items() if r not in dead},
        device_bytes=draw(st.sampled_from([None, None, 8e6, 2e7])),
    )


def ranges_of(prefix: np.ndarray) -> np.ndarray:
    """[stages, blocks + 1, blocks + 1] seconds of ranges, from ``prefix[s, b]``: those of blocks 0 to b - 1."""
    later = np.less.outer(*[np.arange(prefix.shape[1])] * 2)
    return np.where(later, prefix[:, None, :] - prefix[:, :, None], np.inf)
