"""A rank's state to and from protobuf."""

from evenkeel.control.v1 import control_pb2 as pb
from evenkeel.layouts.codec import from_proto, number_of, to_proto
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState

_PHASES = {number_of(pb.RankPhase.DESCRIPTOR, phase): phase for phase in RankPhase}


def ballot_to_proto(ballot: Ballot) -> pb.Ballot:
    """The wire form of a ballot."""
    return to_proto(pb.Ballot, ballot)


def ballot_from_proto(message: pb.Ballot) -> Ballot:
    """The ballot in a message."""
    return Ballot(term=message.term, epoch=message.epoch)


def rank_state_to_proto(state: RankState) -> pb.RankState:
    """The wire form of a rank's state."""
    return to_proto(pb.RankState, state, promised=ballot_to_proto(state.promised), group_handle=b"")


def rank_state_from_proto(message: pb.RankState) -> RankState:
    """The state in a message; a phase that this version does not know counts as RESHAPING: not yet there."""
    phase = _PHASES.get(message.phase, RankPhase.RESHAPING)
    return from_proto(RankState, message, phase=phase, promised=ballot_from_proto(message.promised))
