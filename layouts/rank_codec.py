"""A rank's state to and from protobuf."""

from dataclasses import asdict

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.layouts.codec import filled
from evenkeel.layouts.rank_state import Ballot, EarlierState, KeptCopy, RankPhase, RankState

_PHASE_TO_PROTO: dict[RankPhase, "pb.RankPhase.ValueType"] = {
    RankPhase.JOINING: pb.RANK_PHASE_JOINING,
    RankPhase.TRAINING: pb.RANK_PHASE_TRAINING,
    RankPhase.PARKED: pb.RANK_PHASE_PARKED,
    RankPhase.RESHAPING: pb.RANK_PHASE_RESHAPING,
    RankPhase.FINISHED: pb.RANK_PHASE_FINISHED,
}
_PHASE_FROM_PROTO = {number: phase for phase, number in _PHASE_TO_PROTO.items()}


def ballot_to_proto(ballot: Ballot) -> pb.Ballot:
    """The wire form of a ballot."""
    return pb.Ballot(term=ballot.term, epoch=ballot.epoch)


def ballot_from_proto(message: pb.Ballot) -> Ballot:
    """The ballot in a message."""
    return Ballot(term=message.term, epoch=message.epoch)


def rank_state_to_proto(state: RankState) -> pb.RankState:
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
        last_step_at_unix_seconds=state.last_step_at_unix_seconds,
        copies=[pb.KeptCopy(**asdict(copy)) for copy in state.copies],
        earlier=[pb.EarlierState(**asdict(one)) for one in state.earlier],
        checkpoint_steps=state.checkpoint_steps,
        promised=ballot_to_proto(state.promised),
        pending_epoch=state.pending_epoch,
        failed_epoch=state.failed_epoch,
        failed_reason=state.failed_reason,
        keeper_of=state.keeper_of,
    )


def rank_state_from_proto(message: pb.RankState) -> RankState:
    """The state in a message; a phase that this version does not know counts as RESHAPING: not yet there."""
    return filled(
        RankState,
        message,
        phase=_PHASE_FROM_PROTO.get(message.phase, RankPhase.RESHAPING),
        copies=tuple(filled(KeptCopy, copy) for copy in message.copies),
        earlier=tuple(filled(EarlierState, one) for one in message.earlier),
        promised=ballot_from_proto(message.promised),
    )
