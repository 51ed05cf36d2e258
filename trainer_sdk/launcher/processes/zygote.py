"""The process that forks ranks: imports everything heavy once, then does nothing but fork, reap and tell.

It ends, and takes its children with it, when the supervisor's end of the socket closes. Run as
``python -m evenkeel.trainer_sdk.launcher.processes.zygote FD``.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from evenkeel.trainer_sdk.control.fleet.last_words import leave
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.processes.children import Child, Children
from evenkeel.trainer_sdk.launcher.processes.rank_process import EXIT_FINISHED, load_entry_point, run_rank
from evenkeel.trainer_sdk.launcher.processes.store_keeper import StoreKeeper

STORE = -1  # stands in for a rank


class Zygote:
    """Forks on command and reports exits. Commands and events are JSON lines; see the methods named after them.

    Args:
        control: Socket to the supervisor.
        spec: The job.
    """

    def __init__(self, control: socket.socket, spec: JobSpec) -> None:
        self._control = control
        self._spec = spec
        self._children = Children(self._let_go, self._failed)
        self._store = StoreKeeper.of_this_host(
            spec.job_id, spec.stores, lambda body: self._children.fork(Child(STORE, 0), body)
        )
        own = "" if self._store is None else "{}:{}".format(*self._store.address)
        self._stores = ",".join(spec.stores) or own
        self._ended = False

    def run(self) -> None:
        """Serve until told to end or until the supervisor is gone; no child is left when it returns."""
        self._children.listen()
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_ended", True))
        gc.freeze()
        self._tell(event="ready")
        unread = b""
        while not self._ended:
            if self._store is not None and self._store.due_in_seconds == 0.0:
                self._start_store(self._store)
            wake, due_in_seconds = self._children.wake, None if self._store is None else self._store.due_in_seconds
            readable, _, _ = select.select([self._control, wake], [], [], due_in_seconds)
            if wake in readable:
                for child, pid, code in self._children.reap():
                    self._on_end(child, pid, code)
            if self._control in readable:
                received = self._control.recv(1 << 16)
                if not received:
                    self._children.kill_all()
                    return
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
        self._children.end_all(self._on_end)

    def _obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "fork":
                self._fork_rank(command["rank"], command["incarnation"])
            case "signal":
                self._children.signal(Child(command["rank"], command["incarnation"]), command["number"])
            case "end":
                self._ended = True
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def _fork_rank(self, rank: int, incarnation: int) -> None:
        try:
            pid = self._children.fork(
                Child(rank, incarnation), lambda: run_rank(self._spec, rank, incarnation, self._stores)
            )
        except OSError as error:
            if incarnation == 0:
                raise
            # No memory or no process to be had now: those who train go on, and ended with us.
            self._tell(event="unforked", rank=rank, why=str(error))
            return
        self._tell(event="forked", rank=rank, incarnation=incarnation, pid=pid)

    def _start_store(self, store: StoreKeeper) -> None:
        try:
            pid = store.start()
        except OSError as error:
            self._tell(event="unforked", rank=STORE, why=str(error))
            return
        host, port = store.address
        self._tell(event="store", pid=pid, host=host, port=port, starts=store.num_starts)

    def _on_end(self, child: Child, pid: int, code: int) -> None:
        if self._store is not None and child.rank == STORE:
            self._store.ended()
        elif self._store is not None and code == EXIT_FINISHED:
            self._store.job_finished()
        self._tell(event="exited", rank=child.rank, incarnation=child.incarnation, pid=pid, code=code)

    def _let_go(self, child: Child) -> None:
        self._control.close()
        if self._store is not None:
            self._store.close_in_child(is_store=child.rank == STORE)

    def _failed(self, child: Child, error: BaseException) -> None:
        leave(error, self._spec.run_dir, child.rank, child.incarnation)

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
        leave(error, spec.run_dir, STORE, 0)
        raise
    Zygote(control, spec).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to clean up, and some libraries report "leaks" when the interpreter ends


if __name__ == "__main__":
    _main()
