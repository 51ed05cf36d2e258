"""What a process of a plain loop says of its own end, which nobody else sees: launchers of others tell us nothing.

Who ends because a peer's connection broke is that peer's victim: it accuses the peer and has ended by no fault of its
own, so that one death among many ranks is one failure in the history and not many.
"""

import re
import sys

from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.emit.emitter import process_event

EXIT_EVICTED = 75
"""Exit status of a process without which the others go on."""

_OF_A_PEER = re.compile(
    r"gloo|nccl|connection (?:closed|reset) by peer|socket ?timeout|broken pipe|connection refused", re.IGNORECASE
)
_LONGEST_DETAIL = 300


def ending_error() -> BaseException | None:
    """The error that this process is ending with; None when there is none, as far as the interpreter knows."""
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):  # at a prompt, errors end nothing
        error = getattr(sys, "last_value", None)
    return None if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit) else error


def is_of_a_peer(error: BaseException) -> bool:
    """Whether an error says that a connection to a peer broke: whoever ends with it is that peer's victim."""
    return isinstance(error, ConnectionError) or (
        isinstance(error, RuntimeError) and _OF_A_PEER.search(str(error)) is not None
    )


def farewell(rank: int, incarnation: int, error: BaseException | None) -> list[pb.ProcessEvent]:
    """Events that tell of the end of a process.

    Args:
        rank: Its rank.
        incarnation: Which process of it.
        error: What it ends with; None when its work is done.
    """
    if error is None:
        kinds, detail = [pb.PROCESS_EVENT_KIND_FINISHED], ""
    else:
        lines = str(error).splitlines() or [""]
        detail = f"{type(error).__name__}: {lines[0]}"[:_LONGEST_DETAIL]
        if is_of_a_peer(error):
            kinds = [pb.PROCESS_EVENT_KIND_CONNECTION_LOST, pb.PROCESS_EVENT_KIND_FINISHED]
        else:
            kinds = [pb.PROCESS_EVENT_KIND_DIED]
    return [process_event(kind, rank, incarnation, detail) for kind in kinds]
