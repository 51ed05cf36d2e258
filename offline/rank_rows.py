"""A frame message rank by rank, in whichever of its two forms it came: what each measured, and its micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_SECONDS = (
    "forward",
    "backward",
    "optimizer",
    "data",
    "tensor_wait",
    "pipeline_wait",
    "gradient_wait",
    "vote_wait",
    "wall",
)
_FIELDS = (
    "forward",
    "backward",
    "optimizer",
    "data",
    "wait_tensor",
    "wait_pipeline",
    "wait_gradient",
    "wait_vote",
    "wall",
)


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


def rank_rows(frame: pb.Frame) -> list[RankRow]:
    """Every rank of a frame; those of a loop that names no positions are replicas, each of its own."""
    rows = list(_rows(frame))
    if len({(row.replica, row.stage, row.shard) for row in rows}) == len(rows):
        return rows
    return [replace(row, replica=row.rank, stage=0, shard=0) for row in rows]


def _rows(frame: pb.Frame) -> Iterator[RankRow]:
    for entry in frame.entries:
        yield _of_sample(entry.rank, entry.sample)
    if frame.HasField("columns"):
        yield from _of_columns(frame.columns)


def _of_sample(rank: int, sample: pb.Sample) -> RankRow:
    position, waiting, compute = sample.position, sample.waiting, sample.compute
    price = (position.forward_flops_per_token, position.forward_flops_per_squared_length)
    batches = [(one.index, one.tokens, one.sum_of_squares) for one in sample.micro_batches]
    return RankRow(
        rank=rank,
        replica=position.replica,
        stage=position.stage,
        shard=position.shard,
        planned=sample.mark != pb.MARK_UNSPECIFIED,
        forward=compute.forward,
        backward=compute.backward,
        optimizer=compute.optimizer,
        data=compute.data,
        wait_tensor=waiting.tensor,
        wait_pipeline=waiting.pipeline,
        wait_gradient=waiting.gradient,
        wait_vote=waiting.vote,
        wall=sample.wall_seconds,
        micro_batches=_costs(batches, price),
        work=_work(batches, price),
    )


def _of_columns(columns: pb.FrameColumns) -> Iterator[RankRow]:
    count, num_batches = len(columns.ranks), sum(columns.workload_sizes)

    def column(name: str, length: int = count) -> Sequence[Any]:
        """A column; one of zeros is left out of the message."""
        values: Sequence[Any] = getattr(columns, name)
        return values if len(values) else [0] * length

    indexes, tokens, squares = (
        column(f"micro_batch_{name}", num_batches) for name in ("indexes", "tokens", "sums_of_squares")
    )
    workloads, start = [], 0
    for size in columns.workload_sizes:
        part = slice(start, start + size)
        workloads.append(list(zip(indexes[part], tokens[part], squares[part], strict=True)))
        start += size
    places = zip(*(column(name) for name in ("ranks", "replicas", "stages", "shards", "marks")), strict=True)
    prices = zip(
        column("forward_flops_per_token"),
        column("forward_flops_per_squared_length"),
        column("workload_of"),
        strict=True,
    )
    seconds = zip(*(column(f"{name}_seconds") for name in _SECONDS), strict=True)
    for (rank, replica, stage, shard, mark), (per_token, per_square, workload), spent in zip(
        places, prices, seconds, strict=True
    ):
        batches, price = workloads[workload] if workloads else [], (per_token, per_square)
        yield RankRow(
            rank=rank,
            replica=replica,
            stage=stage,
            shard=shard,
            planned=mark != pb.MARK_UNSPECIFIED,
            micro_batches=_costs(batches, price),
            work=_work(batches, price),
            **dict(zip(_FIELDS, spent, strict=True)),
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
