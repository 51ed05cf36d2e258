"""The process that forks ranks: imports everything heavy once, then does nothing but fork, reap and tell.

One thread, no CUDA, no gRPC core, so that a fork is safe and takes milliseconds. It ends, and takes its children with
it, when the supervisor's end of the socket closes. Run as ``python -m evenkeel.trainer_sdk.launcher.processes.zygote
FD``.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from evenkeel.trainer_sdk.control.last_words import LastWords
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.left_words import leave
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FAILED, EXIT_FINISHED, load_entry_point, run_rank
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper

STORE = -1  # stands in for a rank
END_GRACE_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1


class Zygote:
    """Forks on command and reports exits. Commands and events are JSON lines; see the methods named after them.

    Args:
        control: Socket to the supervisor.
        spec: The job.
    """

    def __init__(self, control: socket.socket, spec: JobSpec) -> None:
        self._control = control
        self._spec = spec
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (rank or STORE, incarnation)
        self._store = StoreKeeper(spec.job_id, lambda body: self._fork(STORE, self._store.num_starts, body))
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._ended = False

    def run(self) -> None:
        """Serve until told to end or until the supervisor is gone; no child is left when it returns."""
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_ended", True))
        gc.freeze()
        self._tell(event="ready")
        unread = b""
        while not self._ended:
            if self._store.due_in_seconds == 0.0:
                self._start_store()
            readable, _, _ = select.select([self._control, self._wake_reader], [], [], self._store.due_in_seconds)
            if self._wake_reader in readable:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
                self._reap()
            if self._control in readable:
                received = self._control.recv(1 << 16)
                if not received:
                    self._kill_all()
                    return
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
        self._end_all()

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "fork":
                self._fork_rank(command["rank"], command["incarnation"])
            case "signal":
                self._signal(command["rank"], command["incarnation"], command["number"])
            case "end":
                self._ended = True
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def _fork_rank(self, rank: int, incarnation: int) -> None:
        try:
            pid = self._fork(rank, incarnation, lambda: run_rank(self._spec, rank, incarnation, self._store.address))
        except OSError as error:
            if incarnation == 0:
                raise
            # No memory or no process to be had now: those who train go on, and ended with us.
            self._tell(event="unforked", rank=rank, why=str(error))
            return
        self._tell(event="forked", rank=rank, incarnation=incarnation, pid=pid)

    def _start_store(self) -> None:
        try:
            pid = self._store.start()
        except OSError as error:
            self._tell(event="unforked", rank=STORE, why=str(error))
            return
        host, port = self._store.address
        self._tell(event="store", pid=pid, host=host, port=port, starts=self._store.num_starts)

    def _signal(self, rank: int, incarnation: int, number: int) -> None:
        # Only we reap, so a pid in the table is certainly still that process.
        for pid, child in self._children.items():
            if child == (rank, incarnation):
                os.kill(pid, number)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank, incarnation = self._children.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if rank == STORE:
                self._store.ended()
            elif code == EXIT_FINISHED:
                self._store.job_finished()
            self._tell(event="exited", rank=rank, incarnation=incarnation, pid=pid, code=code)

    def _fork(self, rank: int, incarnation: int, body: Callable[[], int]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, body, rank, incarnation)
        self._children[pid] = (rank, incarnation)
        return pid

    def _become_child(self, parent: int, body: Callable[[], int], rank: int, incarnation: int) -> NoReturn:
        status = EXIT_FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            self._control.close()
            self._wake_reader.close()
            self._wake_writer.close()
            self._store.close_in_child(is_store=rank == STORE)
            if os.getppid() == parent:  # else the parent died before the kernel knew our wish
                status = body()
        except BaseException as error:
            traceback.print_exc()
            leave(LastWords.of(error), self._spec.run_dir, rank, incarnation)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _end_all(self) -> None:
        """Ask every child to end, then make it; a stopped one does not hear the question."""
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_GRACE_SECONDS
        while self._children and (remaining := deadline - time.monotonic()) > 0:
            self._reap()
            if self._children and select.select([self._wake_reader], [], [], remaining)[0]:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
        self._kill_all()

    def _kill_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        while self._children:
            pid, _ = os.waitpid(-1, 0)
            self._children.pop(pid, None)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed in run()
            self._control.sendall(json.dumps(event).encode() + b"\n")


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with control.makefile("rb", buffering=0) as lines:
        spec = JobSpec.from_json(json.loads(lines.readline()))
    sys.path[:0] = [folder for folder in spec.python_path if Path(folder).is_dir()]
    import torch.distributed  # noqa: F401, PLC0415 - the point of this process

    try:
        load_entry_point(spec.entry_point)
    except BaseException as error:
        leave(LastWords.of(error), spec.run_dir, STORE, 0)
        raise
    Zygote(control, spec).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to clean up, and some libraries report "leaks" when the interpreter ends


if __name__ == "__main__":
    _main()
