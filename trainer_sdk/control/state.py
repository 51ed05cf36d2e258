"""What a plan tells a rank, as plain values, and how it comes over the wire."""

from dataclasses import dataclass
from enum import StrEnum

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.layouts.codec import from_proto, layout_from_proto
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import StandIn


class ApplyMode(StrEnum):
    """How a plan is applied: together at a step vote, or at once by parked survivors."""

    BOUNDARY = "boundary"
    RECOVER = "recover"


_MODES = {pb.APPLY_MODE_BOUNDARY: ApplyMode.BOUNDARY, pb.APPLY_MODE_RECOVER: ApplyMode.RECOVER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshape:
    """A plan as ranks need it: the epoch and layout it leads to, how it is applied, and whose attempt it is."""

    job_id: str
    plan_id: str
    epoch: int
    mode: ApplyMode
    to_layout: Layout
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The decision to apply a plan.

    Attributes:
        reshape: The plan.
        from_epoch: Epoch whose slices are read; all sources hold it.
        from_layout: Layout of ``from_epoch``.
        sources: Ranks whose slices of ``from_epoch`` may be read.
        steps_applied: Steps that all ranks have applied when the new epoch begins; -1 in mode BOUNDARY.
        stand_ins: Copies that are read in place of their owners; each contains ``steps_applied`` steps.
        from_checkpoint: Everything is read from the checkpoint of ``steps_applied`` steps (none: from the seed).
    """

    reshape: Reshape
    from_epoch: int
    from_layout: Layout
    sources: tuple[int, ...]
    steps_applied: int = -1
    stand_ins: tuple[StandIn, ...] = ()
    from_checkpoint: bool = False


def reshape_from_proto(message: pb.Reshape) -> Reshape:
    """The plan in a message.

    Raises:
        ValueError: No plan id, a negative epoch, an unset mode, or an invalid layout.
    """
    mode = _MODES.get(message.mode)
    if mode is None:
        raise ValueError(f"plan {message.plan_id!r} has no apply mode: set BOUNDARY or RECOVER")
    if not message.plan_id:
        raise ValueError("the plan has no plan_id: set the id under which the scheduler recorded it")
    if message.epoch < 1:
        raise ValueError(f"plan {message.plan_id!r} leads to epoch {message.epoch}: plans start at epoch 1")
    return from_proto(Reshape, message, mode=mode, to_layout=layout_from_proto(message.to_layout))


def commit_from_proto(message: pb.CommitRequest) -> Commit:
    """The decision in a request.

    Raises:
        ValueError: The plan or a layout is invalid, RECOVER does not say how many steps are applied, or slices are
            to be read from ranks that their layout does not have, or from nobody.
    """
    reshape = reshape_from_proto(message.reshape)
    if reshape.mode is ApplyMode.RECOVER and message.steps_applied < 0:
        raise ValueError(f"plan {reshape.plan_id!r} recovers: steps_applied must say which step all ranks have applied")
    if not 0 <= message.from_epoch < reshape.epoch:
        raise ValueError(f"plan {reshape.plan_id!r} reads epoch {message.from_epoch} to make epoch {reshape.epoch}")
    from_layout = layout_from_proto(message.from_layout)
    strangers = {*message.sources, *(one.owner for one in message.stand_ins)}.difference(from_layout.ranks)
    if strangers or not (message.sources or message.stand_ins or message.from_checkpoint):
        raise ValueError(
            f"plan {reshape.plan_id!r} reads from ranks {sorted(message.sources)} and copies of ranks "
            f"{sorted(one.owner for one in message.stand_ins)}, but epoch {message.from_epoch} is that of ranks "
            f"{list(from_layout.ranks)}: name some of these, or a checkpoint"
        )
    return from_proto(Commit, message, reshape=reshape, from_layout=from_layout)
