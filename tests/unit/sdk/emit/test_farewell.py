"""The last word of a process of a plain loop: done, dead, or the victim of a peer."""

import os
import subprocess
import sys

import pytest

from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.emit.farewell import farewell

DIED, FINISHED, LOST = (
    pb.PROCESS_EVENT_KIND_DIED,
    pb.PROCESS_EVENT_KIND_FINISHED,
    pb.PROCESS_EVENT_KIND_CONNECTION_LOST,
)


def kinds(error: BaseException | None) -> list[int]:
    return [event.kind for event in farewell(3, 1, error)]


def test_who_is_done_says_so() -> None:
    (event,) = farewell(3, 1, None)
    assert (event.kind, event.rank, event.incarnation, event.detail) == (FINISHED, 3, 1, "")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:545] Read error [::1]:2: Connection reset by peer"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:10, remote process exited or there was a network error"),
        ConnectionResetError("x"),
    ],
)
def test_the_victim_of_a_peer_accuses_it_and_has_not_died_itself(error: Exception) -> None:
    assert kinds(error) == [LOST, FINISHED]


def test_an_error_of_its_own_is_its_death_with_the_first_line_of_the_error() -> None:
    (event,) = farewell(3, 1, ValueError("no such file\nsecond line"))
    assert (event.kind, event.detail) == (DIED, "ValueError: no such file")
    assert kinds(MemoryError()) == [DIED]


@pytest.mark.parametrize(
    ("ends_with", "error"),
    [("pass", "None"), ("raise ValueError('x')", "ValueError('x')"), ("raise SystemExit(3)", "None")],
)
def test_at_exit_the_interpreter_knows_what_a_process_ends_with(ends_with: str, error: str) -> None:
    script = (
        "import atexit\n"
        "from evenkeel.trainer_sdk.emit.farewell import ending_error\n"
        "atexit.register(lambda: print(repr(ending_error()), flush=True))\n"
        f"{ends_with}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600, env=dict(os.environ)
    )
    assert ended.stdout.strip() == error
