"""A frame rank by rank: what each measured, and its micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from evenkeel.contracts.columns import HAS_FLOPS
from evenkeel.contracts.frames import Frames

_SECONDS = {
    **{name: f"{name}_seconds" for name in ("wall", "forward", "backward", "optimizer")},
    "data": "input_seconds",
    **{f"wait_{name}": f"wait_{name}_seconds" for name in ("tensor", "pipeline", "gradient", "vote")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank's iteration; seconds.

    Attributes:
        rank: Rank.
        replica: Data-parallel replica.
        stage: Pipeline stage.
        shard: Tensor shard.
        planned: The iteration held a planned pause or a reshape.
        forward: Forward passes.
        backward: Backward passes.
        optimizer: Optimizer step.
        data: Input.
        wait_tensor: Waiting for tensor collectives, the collectives themselves included.
        wait_pipeline: Waiting for neighbouring stages.
        wait_gradient: Waiting for the gradient exchange.
        wait_vote: Waiting for the step vote.
        wall: The whole iteration.
        micro_batches: Index and cost of each, relative to one another.
        work: Operations of all of them on the rank's share of the model; 0 where that is not known.
    """

    rank: int
    replica: int
    stage: int
    shard: int
    planned: bool
    forward: float
    backward: float
    optimizer: float
    data: float
    wait_tensor: float
    wait_pipeline: float
    wait_gradient: float
    wait_vote: float
    wall: float
    micro_batches: tuple[tuple[int, float], ...]
    work: float


def rank_rows(frame: Frames) -> list[RankRow]:
    """Every rank of a frame, which is one; those of a loop that names no positions are replicas, each of its own."""
    rows = list(_rows(frame))
    if len({(row.replica, row.stage, row.shard) for row in rows}) == len(rows):
        return rows
    return [replace(row, replica=row.rank, stage=0, shard=0) for row in rows]


def _rows(frame: Frames) -> Iterator[RankRow]:
    members = frame.members
    ends = np.cumsum(frame.num_listed[0])
    known = frame.has(HAS_FLOPS)[0]
    for place in np.flatnonzero(frame.present[0]).tolist():
        listed = np.arange(ends[place] - frame.num_listed[0, place], ends[place])
        listed = listed[frame.listed_kept[listed] == 0]
        told = (frame.listed_index, frame.listed_tokens, frame.listed_squares)
        batches = list(zip(*(column[listed].tolist() for column in told), strict=True))
        price = (
            float(members.forward_flops_per_token[place]) if known[place] else 0.0,
            float(members.forward_flops_per_squared_length[place]) if known[place] else 0.0,
        )
        yield RankRow(
            rank=int(members.rank[place]),
            replica=int(members.replica[place]),
            stage=int(members.stage[place]),
            shard=int(members.shard[place]),
            planned=bool(frame.mark[0, place]),
            micro_batches=_costs(batches, price),
            work=_work(batches, price),
            **{name: float(getattr(frame, column)[0, place]) for name, column in _SECONDS.items()},
        )


def _work(batches: list[tuple[int, int, float]], price: tuple[float, float]) -> float:
    return sum([price[0] * tokens + price[1] * squares for _, tokens, squares in batches])


def _costs(batches: list[tuple[int, int, float]], price: tuple[float, float]) -> tuple[tuple[int, float], ...]:
    """Each micro-batch's share of the rank's compute: by its flops, by tokens, or equal where neither is known."""
    costs = [price[0] * tokens + price[1] * squares for _, tokens, squares in batches]
    if sum(costs) <= 0:
        costs = [float(tokens) for _, tokens, _ in batches]
    if sum(costs) <= 0:
        costs = [1.0] * len(batches)
    total = sum(costs)
    return tuple((index, cost / total) for (index, _, _), cost in zip(batches, costs, strict=True))
