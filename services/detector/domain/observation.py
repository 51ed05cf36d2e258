"""What the detector reads: frames as arrays over ranks, and liveness.

Arrays, not objects, because a frame may hold thousands of ranks and is worked on as a whole.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain import frame_arrays as rows
from evenkeel.services.detector.domain.link_suspicion import LinkProbeReport
from evenkeel.services.detector.domain.suspicion import ProbeReport
from evenkeel.services.detector.domain.table_row import TableRow
from evenkeel.services.detector.domain.traffic import TrafficObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def _number(row: int) -> TableRow[Floats]:
    return TableRow("numbers", row)


def _integer(row: int) -> TableRow[Ints]:
    return TableRow("integers", row)


def _flag(row: int) -> TableRow[Bools]:
    return TableRow("flags", row)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameObservation:
    """All ranks' samples of one iteration: one entry a rank in every column, ascending by rank.

    Columns are the rows of three tables, so that a frame is taken as three arrays and not as twenty-five.

    Attributes:
        job_id: Job observed.
        sequence: Number of the observation within the job.
        iteration: Iteration.
        epoch: Highest epoch among the samples.
        closed_at_unix_seconds: When the frame closed.
        missing_ranks: Ranks that had not reported.
        nodes: Node that each entry ran on.
        devices: Device it ran on.
        numbers: ``REPORTED`` by entries, C-contiguous like the next two.
        integers: ``WHOLE`` by entries.
        flags: ``FLAGS`` by entries.
        micro_batches: One row each time that somebody names one: index, tokens, sum of squares; None where not known.
        traffic: Operations between ranks; None where nobody measures them.
        ranks: Rank of each entry; like all that follow a view of a table.
        incarnations: Its incarnation.
        epochs: Epoch of each sample.
        planned: True where the iteration held a planned pause (evaluation, checkpoint) or a reshape.
        compute_seconds: Forward and backward, waiting excluded.
        other_seconds: Optimizer and input.
        wall_seconds: Whole iteration.
        token_flops: Floating-point operations, backward included, that grow with tokens, all micro-batches.
        square_flops: The same for those that grow with the sum of squared lengths.
        has_flops: False where the rank does not know what its share of the model costs; tokens stand in then.
        num_micro_batches: Micro-batches worked on.
        tokens: Tokens of all of them.
        sums_of_squares: Sums of squared lengths of all of them.
        work_keys: Two entries with equal keys hold equal shares of the model.
        replicas: Data-parallel replica d.
        stages: Pipeline stage s.
        shards: Tensor shard t.
        losses: NaN where the rank did not know it; see ``has_loss``.
        has_loss: True where a loss was reported, finite or not.
        gradient_norms: NaN where not measured.
        has_gradient_norm: True where one was reported.
    """

    job_id: str
    sequence: int
    iteration: int
    epoch: int
    closed_at_unix_seconds: float
    missing_ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    numbers: Floats
    integers: Ints
    flags: Bools
    micro_batches: Floats | None = None
    traffic: TrafficObservation | None = None

    ranks = _integer(rows.RANKS)
    incarnations = _integer(rows.INCARNATIONS)
    replicas, stages, shards = (_integer(row) for row in range(rows.FIRST_OF_LAYOUT, rows.COUNTS))
    num_micro_batches = _integer(rows.COUNTS)
    epochs = _integer(rows.EPOCHS)
    planned = _flag(rows.PLANNED)
    has_flops = _flag(rows.HAS_FLOPS)
    has_loss = _flag(rows.HAS_LOSS)
    has_gradient_norm = _flag(rows.HAS_NORM)
    compute_seconds = _number(rows.COMPUTE_SECONDS)
    other_seconds = _number(rows.OTHER_SECONDS)
    wall_seconds = _number(rows.WALL_SECONDS)
    token_flops = _number(rows.FLOPS_OF_TOKENS)
    square_flops = _number(rows.FLOPS_OF_SQUARES)
    tokens = _number(rows.TOKEN_SUMS)
    sums_of_squares = _number(rows.SQUARE_SUMS)
    work_keys = _number(rows.WORK_KEYS)
    losses = _number(rows.LOSS_VALUES)
    gradient_norms = _number(rows.NORM_VALUES)

    @classmethod
    def of_columns(
        cls,
        *,
        job_id: str,
        sequence: int,
        iteration: int,
        epoch: int,
        closed_at_unix_seconds: float,
        nodes: tuple[str, ...],
        devices: tuple[str, ...],
        missing_ranks: tuple[int, ...] = (),
        micro_batches: Floats | None = None,
        traffic: TrafficObservation | None = None,
        data_seconds: Floats | None = None,
        **columns: npt.NDArray[Any],
    ) -> Self:
        """A frame of columns that are made one by one: all of them, but for ``data_seconds`` where it is not known.

        Raises:
            ValueError: One is missing.
            KeyError: There is no such column.
        """
        if len(columns) != rows.NUM_COLUMNS:
            raise ValueError(f"a frame has {rows.NUM_COLUMNS} columns beside data_seconds, here are {len(columns)}")
        tables = rows.empty_tables(len(columns["ranks"]))
        numbers, integers, flags = rows.write_columns(tables, {**columns, "data_seconds": data_seconds})
        return cls(
            job_id=job_id,
            sequence=sequence,
            iteration=iteration,
            epoch=epoch,
            closed_at_unix_seconds=closed_at_unix_seconds,
            missing_ranks=missing_ranks,
            nodes=nodes,
            devices=devices,
            numbers=numbers,
            integers=integers,
            flags=flags,
            micro_batches=micro_batches,
            traffic=traffic,
        )

    def with_columns(self, **columns: npt.NDArray[Any] | None) -> Self:
        """The same frame, but for these columns."""
        tables = self.numbers.copy(), self.integers.copy(), self.flags.copy()
        numbers, integers, flags = rows.write_columns(tables, columns)
        return replace(self, numbers=numbers, integers=integers, flags=flags)

    @property
    def wait_seconds(self) -> Floats:
        """One row an entry: tensor, pipeline, gradient, vote."""
        waits: Floats = self.numbers[rows.FIRST_WAIT : rows.FIRST_WAIT + rows.NUM_WAITS].T
        return waits

    @property
    def data_seconds(self) -> Floats | None:
        """Fetching and packing input, part of ``other_seconds``; None where nobody knows it."""
        known: Floats | None = self.numbers[rows.DATA_SECONDS] if self.flags[rows.HAS_DATA].any() else None
        return known

    @property
    def at_unix_seconds(self) -> float:
        """When it was made: when the frame closed."""
        return self.closed_at_unix_seconds

    def __len__(self) -> int:
        count: int = self.integers.shape[1]
        return count


class ProcessEventKind(StrEnum):
    """Kinds of process events."""

    STARTED = "started"
    DIED = "died"
    FINISHED = "finished"
    STREAM_BROKEN = "stream_broken"
    CONNECTION_LOST = "connection_lost"
    PROBED = "probed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvent:
    """Something happened to the process of a rank.

    Attributes:
        at_unix_seconds: When.
        kind: What.
        rank: Rank.
        incarnation: Its incarnation.
        detail: One line for a person.
        node: Where the process runs or ran; empty when the one who tells does not know.
        device: The same for its device.
        probe: Of a probed process, or a link of it: what the probe took.
    """

    at_unix_seconds: float
    kind: ProcessEventKind
    rank: int
    incarnation: int
    detail: str = ""
    node: str = ""
    device: str = ""
    probe: ProbeReport | LinkProbeReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank was when last heard.

    Attributes:
        rank: Rank.
        incarnation: Its incarnation.
        iteration: Iteration in progress.
        epoch: Epoch in force there.
        operation_count: Grows from report to report when operations were started in between.
        operation: Operation reached.
        seconds_in_operation: How long it had been in it when heard.
        waiting_for: Ranks it waits for, if known.
        seconds_since_heard: Since anything was heard from the process.
        seconds_since_moved: Since ``operation_count`` last moved.
        at_unix_seconds: When the rank read its own progress.
    """

    rank: int
    incarnation: int
    iteration: int
    epoch: int
    operation_count: int
    operation: str
    seconds_in_operation: float
    waiting_for: tuple[int, ...] = ()
    seconds_since_heard: float
    seconds_since_moved: float
    at_unix_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessObservation:
    """Something about processes: an event, a picture of who is where, or both."""

    job_id: str
    sequence: int
    at_unix_seconds: float
    event: ProcessEvent | None = None
    progress: tuple[RankProgress, ...] = ()
    seconds_without_progress: float = 0.0


Observation = FrameObservation | LivenessObservation
