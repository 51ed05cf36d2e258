"""The table of operations: one row for each operation that a worker ran in a step.

A worker is one pipeline stage of one data-parallel rank; its tensor-parallel ranks count as one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Floats, Ints


class OperationType(StrEnum):
    """Operations with a place in the graph; others are refused, because nobody could say what waits for them.

    Where the gradients of weights are made apart, for which nobody waits, ``BACKWARD`` is the input's alone.
    """

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    BACKWARD_WEIGHT = "backward-weight-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS_ALL_GATHER = "params-all-gather"
    GRADS_REDUCE_SCATTER = "grads-reduce-scatter"
    SEPARATE_GRADS_ALL_REDUCE = "separate-grads-all-reduce"
    LAYERNORM_GRADS_ALL_REDUCE = "layernorm-grads-all-reduce"
    EMBEDDING_GRADS_ALL_REDUCE = "embedding-grads-all-reduce"
    CLIP_GRADS = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"
    GARBAGE_COLLECTION = "gc"
    INPUT = "input"


COMPUTE = frozenset({OperationType.FORWARD, OperationType.BACKWARD, OperationType.BACKWARD_WEIGHT})

LOCAL = COMPUTE | {OperationType.OPTIMIZER, OperationType.GARBAGE_COLLECTION, OperationType.INPUT}
"""Operations of one device alone: their ideal duration is the mean. All others communicate: the median."""

REQUIRED_COLUMNS = ("step", "dp_rank", "stage", "optype", "start_ts", "duration")
OPTIONAL_COLUMNS = ("rank", "seq_id", "mc", "gmc", "mb_id")


class OperationError(ValueError):
    """A table of operations that cannot be analysed; the message says where and what to do.

    Args:
        problem: What is wrong.
        row: Which row has it, from 0; None where it is not one row's.
    """

    def __init__(self, problem: str, *, row: int | None = None) -> None:
        super().__init__(problem if row is None else f"row {row + 1}: {problem}")
        self.problem = problem
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Columns of equal length, one entry an operation.

    Attributes:
        step: Training step.
        dp_rank: Data-parallel rank.
        stage: Pipeline stage, from 0.
        rank: Global rank of the worker.
        optype: Values of :class:`OperationType`.
        sequence: Order among the worker's operations of this type in this step, by start.
        chunk: Model chunk within the stage.
        global_chunk: Model chunk within the model.
        micro_batch: Micro-batch, -1 where there is none.
        start_seconds: Start, on a clock that all workers of a step share.
        duration_seconds: End minus start, waiting included.
        work: How much a computation had to do, in units of one's own; 0 where that is not known, and then workers of
            the same stage are taken to do the same.
    """

    step: Ints
    dp_rank: Ints
    stage: Ints
    rank: Ints
    optype: npt.NDArray[np.str_]
    sequence: Ints
    chunk: Ints
    global_chunk: Ints
    micro_batch: Ints
    start_seconds: Floats
    duration_seconds: Floats
    work: Floats

    def __len__(self) -> int:
        return len(self.step)

    @property
    def end_seconds(self) -> Floats:
        """End of each operation."""
        found: Floats = self.start_seconds + self.duration_seconds
        return found

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """Checks a table and puts it in order: by step, rank of the pipeline, type and start.

        Args:
            columns: Arrays by the names of :data:`REQUIRED_COLUMNS`, :data:`OPTIONAL_COLUMNS` and ``work``; others are
                ignored.

        Raises:
            OperationError: Columns are missing, or values make no sense.
        """
        missing = [name for name in REQUIRED_COLUMNS if name not in columns]
        if missing:
            raise OperationError(
                f"columns are missing: {', '.join(missing)}; needed are {', '.join(REQUIRED_COLUMNS)}, and "
                f"{', '.join(OPTIONAL_COLUMNS)} are used where they exist"
            )
        count = len(columns["step"])
        if count == 0:
            raise OperationError("the table has no operations")
        step, dp_rank, stage = (_integers(columns, name) for name in ("step", "dp_rank", "stage"))
        optype = np.asarray(columns["optype"]).astype(np.str_)
        start, duration = _seconds(columns, "start_ts"), _seconds(columns, "duration")
        _check(dp_rank, stage, optype, duration)
        order = np.lexsort((start, optype, stage, dp_rank, step))
        if "seq_id" in columns:
            given = _integers(columns, "seq_id")
            order = np.lexsort((start, given, optype, stage, dp_rank, step))
        step, dp_rank, stage, optype = step[order], dp_rank[order], stage[order], optype[order]
        num_stages = int(stage.max()) + 1
        chunk = _optional(columns, "mc", order, np.zeros(count, dtype=np.int64))
        worker = dp_rank * num_stages + stage
        rank = _rank_of_worker(step, worker, _optional(columns, "rank", order, worker))
        return cls(
            step=step,
            dp_rank=dp_rank,
            stage=stage,
            rank=rank,
            optype=optype,
            sequence=_order_within(step, dp_rank, stage, optype),
            chunk=chunk,
            global_chunk=_optional(columns, "gmc", order, np.maximum(chunk, 0) * num_stages + stage),
            micro_batch=_optional(columns, "mb_id", order, np.full(count, -1, dtype=np.int64)),
            start_seconds=start[order],
            duration_seconds=duration[order],
            work=np.asarray(columns["work"], dtype=np.float64)[order] if "work" in columns else np.zeros(count),
        )

    def select(self, rows: npt.NDArray[np.bool_] | Ints) -> "Operations":
        """Some of the operations, in the same order."""
        return Operations(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def _integers(columns: Mapping[str, npt.NDArray[np.generic]], name: str) -> Ints:
    values = np.asarray(columns[name])
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise OperationError(f"column {name} holds something that is not a number: {error}") from error
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
    if len(wrong):
        raise OperationError(f"{name} is {values[wrong[0]]}; it must be a whole number", row=int(wrong[0]))
    return numbers.astype(np.int64)


def _seconds(columns: Mapping[str, npt.NDArray[np.generic]], name: str) -> Floats:
    try:
        values = np.asarray(columns[name]).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise OperationError(f"column {name} holds something that is not a number: {error}") from error
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise OperationError(f"{name} is {values[wrong[0]]}; it must be seconds", row=int(wrong[0]))
    return values


def _optional(columns: Mapping[str, npt.NDArray[np.generic]], name: str, order: Ints, default: Ints) -> Ints:
    return _integers(columns, name)[order] if name in columns else default


def _check(dp_rank: Ints, stage: Ints, optype: npt.NDArray[np.str_], duration: Floats) -> None:
    known = {kind.value for kind in OperationType}
    unknown = sorted(set(np.unique(optype).tolist()) - known)
    if unknown:
        first = int(np.flatnonzero(np.isin(optype, unknown))[0])
        raise OperationError(f"unknown optype: {', '.join(unknown)}; known are {', '.join(sorted(known))}", row=first)
    if dp_rank.min() < 0:
        raise OperationError(f"dp_rank is {dp_rank.min()}; it must not be negative", row=int(dp_rank.argmin()))
    stages = np.unique(stage)
    if stages[0] != 0 or stages[-1] != len(stages) - 1:
        shifted = len(stages) == stages[-1] - stages[0] + 1
        hint = f"subtract {stages[0]} if none is missing" if shifted else "are workers missing?"
        raise OperationError(f"stage must count from 0 without gaps; found {stages[:16].tolist()}: {hint}")
    wrong = np.flatnonzero(duration < 0)
    if len(wrong):
        raise OperationError(f"duration is {duration[wrong[0]]}; it must not be negative", row=int(wrong[0]))
    if OperationType.FORWARD not in optype and OperationType.BACKWARD not in optype:
        raise OperationError("the table holds no forward-compute and no backward-compute: there is nothing to replay")


def _rank_of_worker(step: Ints, worker: Ints, rank: Ints) -> Ints:
    """One rank a worker: with several tensor-parallel ranks a stage each operation would count several times."""
    triples = np.unique(np.stack([step, worker, rank]), axis=1)
    repeated = np.flatnonzero((np.diff(triples[:2], axis=1) == 0).all(axis=0))
    if len(repeated):
        at = int(repeated[0])
        raise OperationError(
            f"step {triples[0, at]}: ranks {triples[2, at]} and {triples[2, at + 1]} share one dp_rank and stage; keep "
            "one tensor-parallel rank of each worker"
        )
    workers, place = np.unique(worker, return_inverse=True)
    lowest = np.full(len(workers), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place.ravel(), rank)
    found: Ints = lowest[place.ravel()]
    return found


def _order_within(step: Ints, dp_rank: Ints, stage: Ints, optype: npt.NDArray[np.str_]) -> Ints:
    """Numbers the rows of each (step, dp_rank, stage, optype) from 0; rows of one group stand together."""
    changed = np.ones(len(step), dtype=np.bool_)
    changed[1:] = (
        (step[1:] != step[:-1])
        | (dp_rank[1:] != dp_rank[:-1])
        | (stage[1:] != stage[:-1])
        | (optype[1:] != optype[:-1])
    )
    first = np.maximum.accumulate(np.where(changed, np.arange(len(step)), 0))
    found: Ints = np.arange(len(step)) - first
    return found
