"""What a rank says of itself and what a plan tells it, as plain values, with their wire forms."""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.control.v1 import control_pb2 as pb

from layouts.codec import layout_from_proto, layout_to_proto
from layouts.layout import Layout


class RankPhase(StrEnum):
    """What a rank is doing."""

    JOINING = "joining"
    TRAINING = "training"
    PARKED = "parked"
    RESHAPING = "reshaping"
    FINISHED = "finished"


class ApplyMode(StrEnum):
    """How a plan is applied: together at a step vote, or at once by parked survivors."""

    BOUNDARY = "boundary"
    RECOVER = "recover"


_PHASE_TO_PROTO: dict[RankPhase, "pb.RankPhase.ValueType"] = {
    RankPhase.JOINING: pb.RANK_PHASE_JOINING,
    RankPhase.TRAINING: pb.RANK_PHASE_TRAINING,
    RankPhase.PARKED: pb.RANK_PHASE_PARKED,
    RankPhase.RESHAPING: pb.RANK_PHASE_RESHAPING,
    RankPhase.FINISHED: pb.RANK_PHASE_FINISHED,
}
_PHASE_FROM_PROTO = {number: phase for phase, number in _PHASE_TO_PROTO.items()}
_MODE_TO_PROTO: dict[ApplyMode, "pb.ApplyMode.ValueType"] = {
    ApplyMode.BOUNDARY: pb.APPLY_MODE_BOUNDARY,
    ApplyMode.RECOVER: pb.APPLY_MODE_RECOVER,
}
_MODE_FROM_PROTO = {number: mode for mode, number in _MODE_TO_PROTO.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCopy:
    """A complete copy of what ``owner`` held of ``epoch`` after ``steps_applied`` steps."""

    owner: int
    epoch: int
    steps_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierState:
    """A rank's own slices of ``epoch`` as they were after ``steps_applied`` steps."""

    epoch: int
    steps_applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """``keeper`` is read in place of ``owner``, which is gone."""

    owner: int
    keeper: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """A rank's state, as its training thread published it.

    Attributes:
        rank: Rank.
        incarnation: Which process of the rank.
        phase: What it is doing.
        epoch: Epoch in force; -1 before the first.
        iteration: Iteration in progress.
        steps_applied: Optimizer steps applied since the start of the job: the iteration that comes next.
        voted: Holds the reduced gradients of iteration ``steps_applied`` and voted for the step.
        held_epochs: Epochs whose parameter slices the rank holds completely, newest last.
        group_handle: Address for reconfigurable process groups; empty when groups are rebuilt through the store.
        last_step_at_unix_seconds: Wall-clock time of the last applied step; 0 before the first.
        copies: Complete copies of other ranks' slices that it keeps.
        earlier: Its own slices at earlier steps, to which it can go back.
        checkpoint_steps: Steps of the complete checkpoints on disk that it can read, ascending.
        refused_epoch: Epoch of the newest committed plan that it could not carry out; 0 = none.
        refusal: Why not.
    """

    rank: int
    incarnation: int
    phase: RankPhase
    epoch: int = -1
    iteration: int = 0
    steps_applied: int = 0
    voted: bool = False
    held_epochs: tuple[int, ...] = ()
    group_handle: bytes = b""
    last_step_at_unix_seconds: float = 0.0
    copies: tuple[KeptCopy, ...] = ()
    earlier: tuple[EarlierState, ...] = ()
    checkpoint_steps: tuple[int, ...] = ()
    refused_epoch: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """A plan as ranks need it: the epoch and layout it leads to, and how it is applied."""

    job_id: str
    plan_id: str
    epoch: int
    mode: ApplyMode
    to_layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The decision to apply a plan.

    Attributes:
        reshape: The plan.
        from_epoch: Epoch whose slices are read; all sources hold it.
        from_layout: Layout of ``from_epoch``.
        sources: Ranks whose slices of ``from_epoch`` may be read.
        steps_applied: Steps that all ranks have applied when the new epoch begins; -1 in mode BOUNDARY.
        group_handles: Handle of each rank of the new layout, ascending by rank; empty when groups are rebuilt.
        stand_ins: Copies that are read in place of their owners; each contains ``steps_applied`` steps.
        from_checkpoint: Everything is read from the checkpoint on disk of ``steps_applied`` steps.
    """

    reshape: Reshape
    from_epoch: int
    from_layout: Layout
    sources: tuple[int, ...]
    steps_applied: int = -1
    group_handles: tuple[bytes, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    from_checkpoint: bool = False


def state_to_proto(state: RankState) -> pb.RankState:
    """The wire form of a rank's state."""
    return pb.RankState(
        rank=state.rank,
        incarnation=state.incarnation,
        phase=_PHASE_TO_PROTO[state.phase],
        epoch=state.epoch,
        iteration=state.iteration,
        steps_applied=state.steps_applied,
        voted=state.voted,
        held_epochs=state.held_epochs,
        group_handle=state.group_handle,
        last_step_at_unix_seconds=state.last_step_at_unix_seconds,
        copies=[
            pb.KeptCopy(owner=copy.owner, epoch=copy.epoch, steps_applied=copy.steps_applied) for copy in state.copies
        ],
        earlier=[pb.EarlierState(epoch=one.epoch, steps_applied=one.steps_applied) for one in state.earlier],
        checkpoint_steps=state.checkpoint_steps,
        refused_epoch=state.refused_epoch,
        refusal=state.refusal,
    )


def state_from_proto(message: pb.RankState) -> RankState:
    """The state in a message.

    Raises:
        ValueError: The phase is not set or unknown.
    """
    phase = _PHASE_FROM_PROTO.get(message.phase)
    if phase is None:
        raise ValueError(f"rank {message.rank} reports phase {message.phase}, which this version does not know")
    return RankState(
        rank=message.rank,
        incarnation=message.incarnation,
        phase=phase,
        epoch=message.epoch,
        iteration=message.iteration,
        steps_applied=message.steps_applied,
        voted=message.voted,
        held_epochs=tuple(message.held_epochs),
        group_handle=message.group_handle,
        last_step_at_unix_seconds=message.last_step_at_unix_seconds,
        copies=tuple(
            KeptCopy(owner=copy.owner, epoch=copy.epoch, steps_applied=copy.steps_applied) for copy in message.copies
        ),
        earlier=tuple(EarlierState(epoch=one.epoch, steps_applied=one.steps_applied) for one in message.earlier),
        checkpoint_steps=tuple(message.checkpoint_steps),
        refused_epoch=message.refused_epoch,
        refusal=message.refusal,
    )


def reshape_to_proto(reshape: Reshape) -> pb.Reshape:
    """The wire form of a plan."""
    return pb.Reshape(
        job_id=reshape.job_id,
        plan_id=reshape.plan_id,
        epoch=reshape.epoch,
        mode=_MODE_TO_PROTO[reshape.mode],
        to_layout=layout_to_proto(reshape.to_layout),
    )


def reshape_from_proto(message: pb.Reshape) -> Reshape:
    """The plan in a message.

    Raises:
        ValueError: No plan id, a negative epoch, an unset mode, or an invalid layout.
    """
    mode = _MODE_FROM_PROTO.get(message.mode)
    if mode is None:
        raise ValueError(f"plan {message.plan_id!r} has no apply mode: set BOUNDARY or RECOVER")
    if not message.plan_id:
        raise ValueError("the plan has no plan_id: set the id under which the scheduler recorded it")
    if message.epoch < 1:
        raise ValueError(f"plan {message.plan_id!r} leads to epoch {message.epoch}: plans start at epoch 1")
    return Reshape(
        job_id=message.job_id,
        plan_id=message.plan_id,
        epoch=message.epoch,
        mode=mode,
        to_layout=layout_from_proto(message.to_layout),
    )


def commit_to_proto(commit: Commit) -> pb.CommitRequest:
    """The request that carries a decision."""
    return pb.CommitRequest(
        reshape=reshape_to_proto(commit.reshape),
        from_epoch=commit.from_epoch,
        from_layout=layout_to_proto(commit.from_layout),
        sources=commit.sources,
        steps_applied=commit.steps_applied,
        group_handles=commit.group_handles,
        stand_ins=[pb.StandIn(owner=one.owner, keeper=one.keeper) for one in commit.stand_ins],
        from_checkpoint=commit.from_checkpoint,
    )


def commit_from_proto(message: pb.CommitRequest) -> Commit:
    """The decision in a request.

    Raises:
        ValueError: The plan or a layout is invalid, or RECOVER does not say how many steps are applied.
    """
    reshape = reshape_from_proto(message.reshape)
    if reshape.mode is ApplyMode.RECOVER and message.steps_applied < 0:
        raise ValueError(f"plan {reshape.plan_id!r} recovers: steps_applied must say which step all ranks have applied")
    if not 0 <= message.from_epoch < reshape.epoch:
        raise ValueError(f"plan {reshape.plan_id!r} reads epoch {message.from_epoch} to make epoch {reshape.epoch}")
    return Commit(
        reshape=reshape,
        from_epoch=message.from_epoch,
        from_layout=layout_from_proto(message.from_layout),
        sources=tuple(message.sources),
        steps_applied=message.steps_applied,
        group_handles=tuple(message.group_handles),
        stand_ins=tuple(StandIn(owner=one.owner, keeper=one.keeper) for one in message.stand_ins),
        from_checkpoint=message.from_checkpoint,
    )
