"""The columns of what ranks measure, in one table: messages, arrays and the SDK's record all follow it.

A new column is a line here, a field of the messages, and its writer. The table needs no numpy: the SDK reads it too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from evenkeel.contracts.measured_arrays import Texts
    from evenkeel.numeric.arrays import Floats, Ints
else:
    Ints = Floats = Texts = object


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: Of the message's field, the array and the record's attribute.
        unit: What it counts; empty where a name says it all.
        wire: Protobuf type of one value.
    """

    name: str
    unit: str
    wire: str

    @property
    def dtype(self) -> str:
        """Numpy's name for the type of its array; ``str`` for texts, which are lists."""
        if self.wire == "string":
            return "str"
        return "float64" if self.wire in ("float", "double") else "int64"


def columns_of(kind: type) -> tuple[Column, ...]:
    """The columns that a class declares itself, each ``Annotated`` with unit and wire."""
    declared = kind.__annotations__.items()
    return tuple(Column(name, *one.__metadata__) for name, one in declared if hasattr(one, "__metadata__"))


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessColumns:
    """One value a batch: who made it, and how much of the rest is of it."""

    job_id: Annotated[Texts, "", "string"]
    node: Annotated[Texts, "", "string"]
    device: Annotated[Texts, "", "string"]
    rank: Annotated[Ints, "", "sint32"]
    incarnation: Annotated[Ints, "", "int32"]
    epoch: Annotated[Ints, "", "int32"]
    replica: Annotated[Ints, "", "int32"]
    stage: Annotated[Ints, "", "int32"]
    shard: Annotated[Ints, "", "int32"]
    sequence: Annotated[Ints, "batches", "uint64"]
    num_dropped: Annotated[Ints, "iterations", "uint64"]
    forward_flops_per_token: Annotated[Floats, "FLOP", "double"]
    forward_flops_per_squared_length: Annotated[Floats, "FLOP", "double"]
    backward_multiple: Annotated[Floats, "1", "double"]
    num_iterations: Annotated[Ints, "iterations", "uint32"]
    num_readings: Annotated[Ints, "readings", "uint32"]
    num_progress: Annotated[Ints, "messages", "uint32"]
    num_events: Annotated[Ints, "messages", "uint32"]


@dataclass(frozen=True, kw_only=True, eq=False)
class IterationColumns:
    """One value an iteration of a rank. Frames tell ``iteration`` once for all ranks."""

    iteration: Annotated[Ints, "", "int64"]
    started_at_unix_seconds: Annotated[Floats, "s", "double"]
    wall_seconds: Annotated[Floats, "s", "float"]
    forward_seconds: Annotated[Floats, "s", "float"]
    backward_seconds: Annotated[Floats, "s", "float"]
    optimizer_seconds: Annotated[Floats, "s", "float"]
    input_seconds: Annotated[Floats, "s", "float"]
    wait_tensor_seconds: Annotated[Floats, "s", "float"]
    wait_pipeline_seconds: Annotated[Floats, "s", "float"]
    wait_gradient_seconds: Annotated[Floats, "s", "float"]
    wait_vote_seconds: Annotated[Floats, "s", "float"]
    wait_other_seconds: Annotated[Floats, "s", "float"]
    tokens: Annotated[Ints, "tokens", "int64"]
    sum_of_squares: Annotated[Floats, "tokens^2", "double"]
    num_micro_batches: Annotated[Ints, "micro-batches", "uint32"]
    loss: Annotated[Floats, "", "double"]
    gradient_norm: Annotated[Floats, "", "double"]
    peak_memory_bytes: Annotated[Ints, "B", "int64"]
    cpu_seconds: Annotated[Floats, "s", "float"]
    queued_seconds: Annotated[Floats, "s", "float"]
    device_seconds: Annotated[Floats, "s", "float"]
    process_cpu_seconds: Annotated[Floats, "s", "float"]
    involuntary_switches: Annotated[Ints, "switches", "uint32"]
    major_faults: Annotated[Ints, "faults", "uint32"]
    mark: Annotated[Ints, "", "enum"]
    flags: Annotated[Ints, "", "uint32"]
    num_listed: Annotated[Ints, "micro-batches", "uint32"]
    num_operations: Annotated[Ints, "operations", "uint32"]
    num_channels: Annotated[Ints, "channels", "uint32"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ListedColumns:
    """One value a micro-batch, ``num_listed`` of each iteration."""

    listed_index: Annotated[Ints, "", "uint32"]
    listed_tokens: Annotated[Ints, "tokens", "uint32"]
    listed_squares: Annotated[Floats, "tokens^2", "double"]
    listed_kept: Annotated[Ints, "", "bool"]


@dataclass(frozen=True, kw_only=True, eq=False)
class OperationColumns:
    """One value an operation of a pipeline's rank, ``num_operations`` of each iteration."""

    operation_kind: Annotated[Ints, "", "enum"]
    operation_stage: Annotated[Ints, "", "uint32"]
    operation_micro_batch: Annotated[Ints, "", "uint32"]
    operation_began_microseconds: Annotated[Ints, "us", "uint32"]
    operation_took_microseconds: Annotated[Ints, "us", "uint32"]
    operation_waited_microseconds: Annotated[Ints, "us", "uint32"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChannelColumns:
    """One value a neighbour in one direction and one use, or a group; ``num_channels`` of each iteration."""

    channel_kind: Annotated[Ints, "", "enum"]
    channel_party: Annotated[Ints, "", "uint32"]
    channel_num_members: Annotated[Ints, "ranks", "uint32"]
    channel_num_operations: Annotated[Ints, "operations", "uint32"]
    channel_bytes: Annotated[Ints, "B", "uint64"]
    channel_wait_microseconds: Annotated[Ints, "us", "uint32"]
    channel_num_stamped: Annotated[Ints, "operations", "uint32"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StampColumns:
    """One value a stamped operation, ``channel_num_stamped`` of each channel."""

    stamp_entered_microseconds: Annotated[Ints, "us", "uint32"]
    stamp_took_microseconds: Annotated[Ints, "us", "uint32"]
    stamp_bytes: Annotated[Ints, "B", "uint64"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadingColumns:
    """One value a reading of a process's host, one a second or more, ``num_readings`` of each batch."""

    reading_at_unix_seconds: Annotated[Floats, "s", "double"]
    throttled_seconds: Annotated[Floats, "s", "double"]
    cpu_pressure_seconds: Annotated[Floats, "s", "double"]
    memory_pressure_seconds: Annotated[Floats, "s", "double"]
    io_pressure_seconds: Annotated[Floats, "s", "double"]
    gpu_clock_mhz: Annotated[Ints, "MHz", "uint32"]
    gpu_max_clock_mhz: Annotated[Ints, "MHz", "uint32"]
    gpu_throttle_reasons: Annotated[Ints, "", "uint32"]


PROCESS = columns_of(ProcessColumns)
ITERATION = columns_of(IterationColumns)
LISTED = columns_of(ListedColumns)
OPERATION = columns_of(OperationColumns)
CHANNEL = columns_of(ChannelColumns)
STAMP = columns_of(StampColumns)
READING = columns_of(ReadingColumns)

PRESENT = 1
"""Flag: the rank reported the iteration. Where it is not set, all else of a frame's entry is zero."""
HAS_LOSS = 2
"""Flag: it knew the loss."""
HAS_NORM = 4
"""Flag: it measured the gradient norm."""
HAS_FLOPS = 8
"""Flag: it knew what its share of the model costs; tokens stand in otherwise."""
HAS_INPUT = 16
"""Flag: it measured the time that its input took."""
HAS_CPU = 32
"""Flag: it measured ``cpu_seconds``."""
HAS_QUEUED = 64
"""Flag: it measured ``queued_seconds``."""
HAS_DEVICE = 128
"""Flag: it measured ``device_seconds``."""
HAS_USAGE = 256
"""Flag: it measured ``process_cpu_seconds``, ``involuntary_switches`` and ``major_faults``."""


NO_RANK = -1
"""The rank of a record that comes from none: from a program that tells of a job's processes.

Records are told apart, numbered and counted by (rank, incarnation), so each of them has an incarnation of its own.
"""
LAUNCHER_INCARNATION = 0
"""Of the launcher, which speaks for the ranks that it started; those of further hosts count up from it."""
SCHEDULER_INCARNATION = 1_000_000_000
"""Of the scheduler, which tells of streams that broke and of probes: the largest that readers take."""


def tell_process(batch: Any, **told: Any) -> None:
    """Says in an empty ``Batch`` who made it, and how much of what is in it; what is not told is zero or empty."""
    for column in PROCESS:
        getattr(batch, column.name).append(told.get(column.name, "" if column.dtype == "str" else 0))
