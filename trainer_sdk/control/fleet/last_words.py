"""What a process of a rank ends with: the last line of its traceback, and whether a peer is to blame.

A process that fails leaves that in a folder, for the launcher that sees it end.
"""

import contextlib
import signal
import traceback
from pathlib import Path

from google.protobuf.message import DecodeError

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED, is_of_a_peer

_LONGEST_LINE = 1000


def one_line(text: str) -> str:
    """A text as the fleet API takes it: one line of printable characters."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable.split())[:_LONGEST_LINE]


def words_of(error: BaseException) -> pb.RankExit:
    """What an error amounts to, whoever ends by it."""
    return pb.RankExit(last_line=one_line(traceback.format_exception_only(error)[-1]), lost_peer=is_of_a_peer(error))


def as_exit(words: pb.RankExit, rank: int, incarnation: int, *, code: int) -> pb.RankExit:
    """The end of a process that left these words.

    Args:
        words: Empty when it left none.
        rank: Its rank.
        incarnation: Which process of it.
        code: Its exit status; negative codes are signals.
    """
    message = pb.RankExit(rank=rank, incarnation=incarnation, code=max(code, 0), signal=max(-code, 0))
    message.MergeFrom(words)
    message.at.GetCurrentTime()
    return message


def exit_words(code: int, last_line: str = "") -> str:
    """An exit code for a person, with the last words of who ended; negative codes are signals."""
    if code == EXIT_EVICTED:
        words = "left the job: it was evicted"
    elif code >= 0:
        words = f"exit status {code}"
    elif -code in set(signal.Signals):
        words = f"killed by {signal.Signals(-code).name}"
    else:
        words = f"killed by signal {-code}"
    return f"{words}: {last_line}" if last_line else words


def leave(error: BaseException, folder: Path, rank: int, incarnation: int) -> None:
    """Leave a note; one that cannot be written is none, and the process's output has it too."""
    with contextlib.suppress(OSError):
        _path(folder, rank, incarnation).write_bytes(words_of(error).SerializeToString())


def take(folder: Path, rank: int, incarnation: int) -> pb.RankExit:
    """The note of a process that has ended, which is gone then; empty without one."""
    path = _path(folder, rank, incarnation)
    try:
        words = pb.RankExit.FromString(path.read_bytes())
        path.unlink()
    except (OSError, DecodeError):
        return pb.RankExit()
    return words


def _path(folder: Path, rank: int, incarnation: int) -> Path:
    return folder / f"last-words-{rank}-{incarnation}"
