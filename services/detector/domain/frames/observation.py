"""What the detector reads: frames as arrays over ranks, and liveness.

Arrays, not objects, because a frame may hold thousands of ranks and is worked on as a whole.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.probe_reports import ProbeReport
from evenkeel.services.detector.domain.frames.traffic import TrafficObservation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameObservation:
    """All ranks' samples of one iteration: one entry a rank in every column, ascending by rank.

    Attributes:
        job_id: Job observed.
        sequence: Number of the observation within the job.
        iteration: Iteration.
        epoch: Epoch of all of its samples.
        closed_at_unix_seconds: When the frame closed.
        missing_ranks: Ranks that had not reported.
        nodes: Node that each entry ran on.
        devices: Device it ran on.
        ranks: Rank of each entry.
        incarnations: Its incarnation.
        planned: True where the iteration held a planned pause (evaluation, checkpoint) or a reshape.
        compute_seconds: Forward and backward, waiting excluded.
        other_seconds: Optimizer and input.
        wall_seconds: Whole iteration.
        wait_seconds: One row an entry: tensor, pipeline, gradient, vote.
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
        data_seconds: Fetching and packing input, part of ``other_seconds``; None where nobody knows it.
        micro_batches: One row each time that somebody names one: index, tokens, sum of squares; None where not known.
        core_seconds: Time on a core of the training thread, part of ``compute_seconds``; NaN for who does not know it,
            None where somebody who computed does not.
        queued_seconds: Waiting for a core, likewise.
        readings: What came with it of the hosts, one a row: rank, seconds throttled by a quota so far.
        traffic: Operations between ranks; None where nobody measures them.
    """

    job_id: str
    sequence: int
    iteration: int
    epoch: int
    closed_at_unix_seconds: float
    missing_ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    ranks: Ints
    incarnations: Ints
    planned: Bools
    compute_seconds: Floats
    other_seconds: Floats
    wall_seconds: Floats
    wait_seconds: Floats
    token_flops: Floats
    square_flops: Floats
    has_flops: Bools
    num_micro_batches: Ints
    tokens: Floats
    sums_of_squares: Floats
    work_keys: Floats
    replicas: Ints
    stages: Ints
    shards: Ints
    losses: Floats
    has_loss: Bools
    gradient_norms: Floats
    has_gradient_norm: Bools
    data_seconds: Floats | None = None
    micro_batches: Floats | None = None
    core_seconds: Floats | None = None
    queued_seconds: Floats | None = None
    readings: Floats | None = None
    traffic: TrafficObservation | None = None

    @property
    def at_unix_seconds(self) -> float:
        """When it was made: when the frame closed."""
        return self.closed_at_unix_seconds

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def is_planned(self) -> bool:
        """Some entry had a planned pause or a reshape, which disturbs also those who do not name it."""
        return bool(self.planned.any())

    @property
    def usable(self) -> Bools:
        """Entries that were measured at work."""
        times = self.compute_seconds + self.other_seconds + self.wall_seconds + self.wait_seconds.sum(axis=1)
        usable: Bools = (self.compute_seconds > 0) & np.isfinite(times) & (self.num_micro_batches > 0)
        return usable


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
    probe: ProbeReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank was when last heard.

    Attributes:
        rank: Rank.
        incarnation: Its incarnation.
        iteration: Iteration in progress.
        epoch: Epoch in force there.
        operation: Operation reached.
        waiting_for: Ranks it waits for, if known.
        seconds_since_heard: Since anything was heard from the process.
        seconds_since_moved: Since it was last seen to start an operation.
    """

    rank: int
    incarnation: int
    iteration: int
    epoch: int
    operation: str
    waiting_for: tuple[int, ...] = ()
    seconds_since_heard: float
    seconds_since_moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessObservation:
    """Something about processes: an event, a picture of who is where, or both."""

    job_id: str
    sequence: int
    at_unix_seconds: float
    event: ProcessEvent | None = None
    progress: tuple[RankProgress, ...] = ()


Observation = FrameObservation | LivenessObservation
