"""What goes wrong with the local stack, with what to do about it in the message."""

from pathlib import Path


class StackError(RuntimeError):
    """A part of the stack is missing, did not start, or died; the message says what to do next."""


class StackNameError(StackError):
    """No stack can have such a name."""


class ServerAwayError(StackError):
    """A server that somebody else runs, or the stack itself, does not answer."""


def log_tail(path: Path, *, begin: int = 0, num_lines: int = 15) -> str:
    """The last lines of a log from a byte on, indented for an error message; a hint when there is none."""
    try:
        lines = path.read_bytes()[begin:].decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        lines = []
    body = "\n".join(f"    {line}" for line in lines) or "    (empty)"
    return f"last lines of {path}:\n{body}"
