"""The process that forks an engine's ranks on a host: imports everything heavy once, then forks, reaps and tells.

It ends, and takes its children with it, when the supervisor's end of the socket closes. Run as
``python -m evenkeel.trainer_sdk.launcher.processes.zygote FD``.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from evenkeel.trainer_sdk.control.fleet.last_words import leave
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.processes.children import Child
from evenkeel.trainer_sdk.launcher.processes.host import STORE, Host
from evenkeel.trainer_sdk.launcher.processes.rank_process import load_entry_point, run_rank
from evenkeel.trainer_sdk.launcher.processes.unit import Unit


class Zygote(Host):
    """Each rank is a unit. Commands, see :meth:`_obey`, and events are JSON lines.

    Args:
        control: Socket to the supervisor.
        spec: The job.
        incarnations: That each rank's first process has.
    """

    def __init__(self, control: socket.socket, spec: JobSpec, incarnations: Mapping[int, int]) -> None:
        super().__init__(
            job_id=spec.job_id,
            stores=spec.stores,
            units=[Unit((rank,), first - 1) for rank, first in incarnations.items()],
            folder=spec.run_dir,
            delay_seconds=spec.restart_delay_seconds,
            finish_grace_seconds=spec.finish_grace_seconds,
        )
        self._control = control
        self._spec = spec
        self._unread = b""
        self._told_to_end = False

    def serve(self) -> None:
        """Serve until told to end or until the supervisor is gone."""
        self._tell("ready")
        self.run(self._control, signal.SIGTERM)

    def _is_over(self) -> bool:
        return self._told_to_end

    def _hear(self) -> None:
        received = self._control.recv(1 << 16)
        if not received:
            self._children.kill_all()
            self._told_to_end = True
        *lines, self._unread = (self._unread + received).split(b"\n")
        for command in map(json.loads, lines):
            self._obey(command["do"], command.get("rank"))

    def _obey(self, command: str, rank: int) -> None:
        match command:
            case "restart":
                self._unit_of[rank].ask_for(time.monotonic())
                self._kill(self._unit_of[rank])
            case "kill":
                self._kill(self._unit_of[rank])
            case "end":
                self._told_to_end = True
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def _bodies(self, unit: Unit) -> Callable[[int], Callable[[], int]]:
        return lambda rank: partial(run_rank, self._spec, rank, unit.incarnation, self.stores)

    def _tell(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed in _hear()
            self._control.sendall(json.dumps({"event": event, **facts}).encode() + b"\n")

    def _let_go(self, child: Child) -> None:
        self._control.close()
        super()._let_go(child)


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with control.makefile("rb", buffering=0) as lines:
        told = json.loads(lines.readline())
    spec, incarnations = JobSpec.from_json(told["spec"]), {int(rank): each for rank, each in told["ranks"].items()}
    sys.path[:0] = [folder for folder in spec.python_path if Path(folder).is_dir()]
    import torch.distributed  # noqa: F401, PLC0415 - the point of this process

    try:
        load_entry_point(spec.entry_point)
    except BaseException as error:
        leave(error, spec.run_dir, STORE, 0)
        raise
    Zygote(control, spec, incarnations).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to clean up, and some libraries report "leaks" when the interpreter ends


if __name__ == "__main__":
    _main()
