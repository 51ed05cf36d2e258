"""The process that forks an engine's ranks on a host: imports everything heavy once, then forks, reaps and tells.

It ends, and takes its children with it, when the supervisor's end of the connection closes. Run as
``python -m evenkeel.trainer_sdk.launcher.processes.zygote FD``.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evenkeel.trainer_sdk.control.fleet.last_words import leave
from evenkeel.trainer_sdk.launcher.description.job_spec import JobSpec
from evenkeel.trainer_sdk.launcher.processes.children import Child
from evenkeel.trainer_sdk.launcher.processes.host import STORE, Host
from evenkeel.trainer_sdk.launcher.processes.rank_process import load_entry_point, run_rank
from evenkeel.trainer_sdk.launcher.processes.unit import Unit


class Zygote(Host):
    """Each rank is a unit. It hears of ranks that are to have another process now, and of None: it is to end.

    Args:
        control: To the supervisor.
        spec: The job.
        incarnations: That each rank's first process has.
    """

    def __init__(self, control: "Connection[Any, Any]", spec: JobSpec, incarnations: Mapping[int, int]) -> None:
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
        if self._store is not None:
            self._tell("store", address=self._store.address)

    def _hear(self) -> None:
        try:
            rank = self._control.recv()
        except (EOFError, OSError):
            self._children.kill_all()
            rank = None
        if rank is None:
            self._ended = -1
        else:
            self._unit_of[rank].ask_for(time.monotonic())
            self._kill(self._unit_of[rank])

    def _bodies(self, unit: Unit) -> Callable[[int], Callable[[], int]]:
        return lambda rank: partial(run_rank, self._spec, rank, unit.incarnation, self.stores)

    def _tell(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed in _hear()
            self._control.send((event, facts))

    def _let_go(self, child: Child) -> None:
        self._control.close()
        super()._let_go(child)


def _main() -> None:
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec, incarnations = control.recv(), control.recv()
    sys.path[:0] = [folder for folder in spec.python_path if Path(folder).is_dir()]
    # The point of this process: what ranks would load each by itself.
    import torch.distributed  # noqa: F401, PLC0415

    import evenkeel.trainer_sdk.emit.kafka_emitter  # noqa: F401, PLC0415

    try:
        load_entry_point(spec.entry_point)
    except BaseException as error:
        leave(error, spec.run_dir, STORE, 0)
        raise
    number = Zygote(control, spec, incarnations).run(control, signal.SIGTERM)
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to clean up, and some libraries report "leaks" when the interpreter ends.
    os._exit(128 + number if number else 0)


if __name__ == "__main__":
    _main()
