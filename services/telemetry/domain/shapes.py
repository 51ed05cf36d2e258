"""The shape of the messages that the rules look into: their fields, without the library that carries them."""

from collections.abc import Sequence
from typing import Protocol


class ComputeShape(Protocol):
    """Device-busy seconds."""

    forward: float
    backward: float
    optimizer: float
    data: float


class WaitingShape(Protocol):
    """Waiting seconds."""

    tensor: float
    pipeline: float
    gradient: float
    vote: float


class MicroBatchShape(Protocol):
    """Workload of a micro-batch."""

    index: int
    tokens: int
    sum_of_squares: float


class PositionShape(Protocol):
    """Share of the model."""

    replica: int
    stage: int
    shard: int
    forward_flops_per_token: float
    forward_flops_per_squared_length: float
    backward_multiple: float


class SampleShape(Protocol):
    """What a rank measured."""

    iteration: int
    epoch: int
    started_at_unix_seconds: float
    wall_seconds: float
    peak_memory_bytes: int

    @property
    def mark(self) -> int:
        """As in the contract."""
        ...

    @property
    def compute(self) -> ComputeShape:
        """As in the contract."""
        ...

    @property
    def waiting(self) -> WaitingShape:
        """As in the contract."""
        ...

    @property
    def micro_batches(self) -> Sequence[MicroBatchShape]:
        """As in the contract."""
        ...

    @property
    def kept_micro_batches(self) -> Sequence[MicroBatchShape]:
        """As in the contract."""
        ...

    @property
    def position(self) -> PositionShape:
        """As in the contract."""
        ...


class ProgressShape(Protocol):
    """Where a rank is."""

    at_unix_seconds: float
    iteration: int
    epoch: int
    operation: str
    seconds_in_operation: float

    @property
    def waiting_for(self) -> Sequence[int]:
        """As in the contract."""
        ...


class EventShape(Protocol):
    """What happened to a process."""

    at_unix_seconds: float
    rank: int
    incarnation: int
    detail: str
    node: str
    device: str


class RecordShape(Protocol):
    """Everything one process emitted at a time."""

    job_id: str
    rank: int
    incarnation: int
    sequence: int
    num_dropped: int
    node: str
    device: str

    @property
    def samples(self) -> Sequence[SampleShape]:
        """As in the contract."""
        ...

    @property
    def progress(self) -> Sequence[ProgressShape]:
        """As in the contract."""
        ...

    @property
    def events(self) -> Sequence[EventShape]:
        """As in the contract."""
        ...
