"""What a process of a rank ends with: the last line of its traceback, and whether a peer is to blame."""

import traceback
from dataclasses import dataclass
from typing import Self

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.emit.farewell import is_of_a_peer

_LONGEST_LINE = 1000


def one_line(text: str) -> str:
    """A text as the fleet API takes it: one line of printable characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:_LONGEST_LINE]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Those of one process.

    Attributes:
        line: Last line of the traceback; empty when it raised nothing.
        lost_peer: The error is that a connection to a peer broke.
    """

    line: str = ""
    lost_peer: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """What an error amounts to."""
        return cls(line=one_line(traceback.format_exception_only(error)[-1]), lost_peer=is_of_a_peer(error))

    def as_exit(self, rank: int, incarnation: int, *, code: int) -> pb.RankExit:
        """The end of a process that left them.

        Args:
            rank: Its rank.
            incarnation: Which process of it.
            code: Its exit status; negative codes are signals.
        """
        message = pb.RankExit(
            rank=rank,
            incarnation=incarnation,
            code=max(code, 0),
            signal=max(-code, 0),
            last_line=self.line,
            lost_peer=self.lost_peer,
        )
        message.at.GetCurrentTime()
        return message
