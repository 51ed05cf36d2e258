"""What a rank measured in one iteration: what engine, watched loops and simulators make, and batches are built of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind
from evenkeel.trainer_sdk.devices.process_usage import Usage
from evenkeel.trainer_sdk.emit.left_value import LeftValue


class Stamps(NamedTuple):
    """The operations of a channel in an iteration; ``took_seconds`` is empty where the rank sends.

    ``kind`` is the number of a ``ChannelKind``; seconds are on ``time.perf_counter``.
    """

    kind: int
    party: int
    num_members: int
    entered_seconds: list[float]
    took_seconds: list[float]
    num_bytes: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a layout an iteration ran, and what the rank's share of the model costs there.

    Attributes:
        epoch: Of the layout.
        replica: Data-parallel replica d.
        stage: Pipeline stage s.
        shard: Tensor shard t.
        forward_flops_per_token: Of the share; None where it is not known.
        forward_flops_per_squared_length: The same per unit of the sum of squared document lengths.
        backward_multiple: Backward cost as a multiple of forward cost.
    """

    epoch: int = 0
    replica: int = 0
    stage: int = 0
    shard: int = 0
    forward_flops_per_token: float | None = None
    forward_flops_per_squared_length: float = 0.0
    backward_multiple: float = 0.0


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Listed:
    """One micro-batch: its index in the global batch, tokens, sum of squared lengths, and if a failed step kept it."""

    index: int
    tokens: int
    squares: float
    kept: bool = False


@dataclass(slots=True, kw_only=True)
class Measured:
    """One finished iteration of one rank; names and units are those of :mod:`evenkeel.contracts.columns`.

    What was not measured is None, never zero.

    Attributes:
        place: Where it ran.
        input_seconds: Fetching input, where that is measured.
        loss: A number, or what the training thread left of one.
        gradient_norm: Likewise.
        cpu_seconds: Of the training thread, within ``forward_seconds`` and ``backward_seconds``.
        queued_seconds: Waiting for a core, within the same.
        device_seconds: By the device's own events, within the same.
        process_cpu_seconds: Of all threads over the iteration; with it come the two counts below.
        listed: Micro-batches one by one, where they matter.
        channels: Operations with other ranks.
        began_seconds: The iteration's start on the clock of the channels' stamps.
    """

    iteration: int
    started_at_unix_seconds: float = 0.0
    wall_seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    input_seconds: float | None = None
    wait_tensor_seconds: float = 0.0
    wait_pipeline_seconds: float = 0.0
    wait_gradient_seconds: float = 0.0
    wait_vote_seconds: float = 0.0
    wait_other_seconds: float = 0.0
    tokens: int = 0
    sum_of_squares: float = 0.0
    num_micro_batches: int = 1
    loss: LeftValue | float | None = None
    gradient_norm: LeftValue | float | None = None
    peak_memory_bytes: int = 0
    cpu_seconds: float | None = None
    queued_seconds: float | None = None
    device_seconds: float | None = None
    process_cpu_seconds: float | None = None
    involuntary_switches: int = 0
    major_faults: int = 0
    mark: int = 0
    place: Place = NOWHERE
    listed: Sequence[Listed] = ()
    channels: Sequence[Stamps] = ()
    began_seconds: float = 0.0

    def add(self, computed: Computed, usage: Usage) -> None:
        """Fill in what the clocks of device, thread and process say."""
        seconds = computed.seconds
        self.forward_seconds = seconds.get(ComputeKind.FORWARD, 0.0)
        self.backward_seconds = seconds.get(ComputeKind.BACKWARD, 0.0)
        self.optimizer_seconds = seconds.get(ComputeKind.OPTIMIZER, 0.0)
        self.input_seconds = seconds.get(ComputeKind.DATA)
        if computed.by_device:
            self.device_seconds = self.forward_seconds + self.backward_seconds
        if computed.thread is not None:
            self.cpu_seconds, self.queued_seconds = computed.thread
        self.process_cpu_seconds = usage.cpu_seconds
        self.involuntary_switches = usage.involuntary_switches
        self.major_faults = usage.major_faults
        self.peak_memory_bytes = self.peak_memory_bytes or usage.peak_memory_bytes
