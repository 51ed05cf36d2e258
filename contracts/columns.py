"""The columns of what ranks measure, in one table: messages, arrays and the SDK's record all follow it.

A new column is a line here, a field of the messages, and its writer. The table needs no numpy: the SDK reads it too.
"""

from dataclasses import dataclass
from typing import Any


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


PROCESS = (
    Column("job_id", "", "string"),
    Column("node", "", "string"),
    Column("device", "", "string"),
    Column("rank", "", "sint32"),
    Column("incarnation", "", "int32"),
    Column("epoch", "", "int32"),
    Column("replica", "", "int32"),
    Column("stage", "", "int32"),
    Column("shard", "", "int32"),
    Column("sequence", "batches", "uint64"),
    Column("num_dropped", "iterations", "uint64"),
    Column("forward_flops_per_token", "FLOP", "double"),
    Column("forward_flops_per_squared_length", "FLOP", "double"),
    Column("backward_multiple", "1", "double"),
    Column("num_iterations", "iterations", "uint32"),
    Column("num_readings", "readings", "uint32"),
    Column("num_progress", "messages", "uint32"),
    Column("num_events", "messages", "uint32"),
)
"""One value a batch: who made it, and how much of the rest is of it."""

ITERATION = (
    Column("iteration", "", "int64"),
    Column("started_at_unix_seconds", "s", "double"),
    Column("wall_seconds", "s", "float"),
    Column("forward_seconds", "s", "float"),
    Column("backward_seconds", "s", "float"),
    Column("optimizer_seconds", "s", "float"),
    Column("input_seconds", "s", "float"),
    Column("wait_tensor_seconds", "s", "float"),
    Column("wait_pipeline_seconds", "s", "float"),
    Column("wait_gradient_seconds", "s", "float"),
    Column("wait_vote_seconds", "s", "float"),
    Column("wait_other_seconds", "s", "float"),
    Column("tokens", "tokens", "int64"),
    Column("sum_of_squares", "tokens^2", "double"),
    Column("num_micro_batches", "micro-batches", "uint32"),
    Column("loss", "", "double"),
    Column("gradient_norm", "", "double"),
    Column("peak_memory_bytes", "B", "int64"),
    Column("cpu_seconds", "s", "float"),
    Column("queued_seconds", "s", "float"),
    Column("device_seconds", "s", "float"),
    Column("process_cpu_seconds", "s", "float"),
    Column("involuntary_switches", "switches", "uint32"),
    Column("major_faults", "faults", "uint32"),
    Column("mark", "", "enum"),
    Column("flags", "", "uint32"),
    Column("num_listed", "micro-batches", "uint32"),
    Column("num_operations", "operations", "uint32"),
    Column("num_channels", "channels", "uint32"),
)
"""One value an iteration of a rank. Frames tell ``iteration`` once for all ranks."""

LISTED = (
    Column("listed_index", "", "uint32"),
    Column("listed_tokens", "tokens", "uint32"),
    Column("listed_squares", "tokens^2", "double"),
    Column("listed_kept", "", "bool"),
)
"""One value a micro-batch, ``num_listed`` of each iteration."""

OPERATION = (
    Column("operation_kind", "", "enum"),
    Column("operation_stage", "", "uint32"),
    Column("operation_micro_batch", "", "uint32"),
    Column("operation_began_microseconds", "us", "uint32"),
    Column("operation_took_microseconds", "us", "uint32"),
    Column("operation_waited_microseconds", "us", "uint32"),
)
"""One value an operation of a pipeline's rank, ``num_operations`` of each iteration."""

CHANNEL = (
    Column("channel_kind", "", "enum"),
    Column("channel_party", "", "uint32"),
    Column("channel_num_members", "ranks", "uint32"),
    Column("channel_num_operations", "operations", "uint32"),
    Column("channel_bytes", "B", "uint64"),
    Column("channel_wait_microseconds", "us", "uint32"),
    Column("channel_num_stamped", "operations", "uint32"),
)
"""One value a neighbour in one direction and one use, or a group; ``num_channels`` of each iteration."""

STAMP = (
    Column("stamp_entered_microseconds", "us", "uint32"),
    Column("stamp_took_microseconds", "us", "uint32"),
    Column("stamp_bytes", "B", "uint64"),
)
"""One value a stamped operation, ``channel_num_stamped`` of each channel."""

READING = (
    Column("reading_at_unix_seconds", "s", "double"),
    Column("throttled_seconds", "s", "double"),
    Column("cpu_pressure_seconds", "s", "double"),
    Column("memory_pressure_seconds", "s", "double"),
    Column("io_pressure_seconds", "s", "double"),
    Column("gpu_clock_mhz", "MHz", "uint32"),
    Column("gpu_max_clock_mhz", "MHz", "uint32"),
    Column("gpu_throttle_reasons", "", "uint32"),
)
"""One value a reading of a process's host, about one a second, ``num_readings`` of each batch."""

MEMBER = (
    Column("rank", "", "sint32"),
    *(Column(name, "", "int32") for name in ("incarnation", "replica", "stage", "shard", "node_of", "device_of")),
    *(each for each in PROCESS if "flops" in each.name or each.name == "backward_multiple"),
)
"""One value a member of frames; ``node_of`` and ``device_of`` are places in their list of names."""

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


def tell_process(batch: Any, **told: Any) -> None:
    """Says in an empty ``Batch`` who made it, and how much of what is in it; what is not told is zero or empty."""
    for column in PROCESS:
        getattr(batch, column.name).append(told.get(column.name, "" if column.dtype == "str" else 0))
