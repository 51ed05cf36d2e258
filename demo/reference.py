"""The failure-free run of the same seed, beside the main job and only on time that nobody else wants.

``python -m evenkeel.demo.reference`` reads the job's configuration as JSON from stdin and writes one loss per line
until its output is closed. Model, samples and optimizer are the engine's own; nothing is paced, nothing fails.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json, config_to_json

_PR_SET_PDEATHSIG = 1


class Reference:
    """Losses of the failure-free run as they come in; belongs to one event loop."""

    def __init__(self, config: TrainingConfig, process: asyncio.subprocess.Process) -> None:
        self._config = config
        self._process = process
        self.losses: list[float] = []

    async def hurry(self) -> None:
        """From now on at the usual priority: the main job has ended, and this machine may have others' work to do."""
        if sys.platform != "linux":
            return
        try:
            os.sched_setscheduler(self._process.pid, os.SCHED_OTHER, os.sched_param(0))
        except PermissionError:
            # Whoever went idle may not come back without a privilege; a new process gets there all the same.
            await self.end()
            self.losses.clear()
            self._process = await _start(self._config, "--usual-priority")
        except ProcessLookupError:
            return  # reading says so

    async def end(self) -> None:
        """Kill the process and wait for its end."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()  # a wait alone never ends where more was written than anybody has read

    async def read_until(self, count: int) -> tuple[float, ...]:
        """Losses of the first ``count`` iterations; waits for them.

        Raises:
            RuntimeError: The process ended before it had so many.
        """
        assert self._process.stdout is not None, "started with a pipe"
        while len(self.losses) < count:
            line = await self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"the reference run ended after {len(self.losses)} of {count} iterations")
            self.losses.append(float(line))
        return tuple(self.losses[:count])


@asynccontextmanager
async def reference_run(config: TrainingConfig) -> AsyncIterator[Reference]:
    """While inside, the failure-free run goes on in a process of the lowest priority; it ends with the block."""
    reference = Reference(config, await _start(config))
    try:
        yield reference
    finally:
        await reference.end()


async def _start(config: TrainingConfig, *arguments: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "evenkeel.demo.reference",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None, "started with a pipe"
    process.stdin.write(json.dumps(config_to_json(config)).encode())
    process.stdin.close()
    return process


def _main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "--usual-priority" not in sys.argv:
        _go_idle()
    import torch  # noqa: PLC0415 - after the priority is set: the import alone costs seconds of a core

    from evenkeel.trainer_sdk.elastic.model.reference import reference_losses  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    for loss in reference_losses(config_from_json(json.load(sys.stdin))):
        print(repr(loss), flush=True)


def _go_idle() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    os.nice(19)


if __name__ == "__main__":
    _main()
