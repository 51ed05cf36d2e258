"""What a rank's process does: the user's script, as if Python had been started with it."""

import atexit
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from evenkeel.trainer_sdk.launcher.agent.script_job import ScriptJob
from evenkeel.trainer_sdk.launcher.processes.children import EXIT_FAILED


def preload() -> None:
    """Import once what each rank would import: a fork has it. Starts no thread and touches no accelerator."""
    # torch's store looks up the name of every peer that connects: a lost DNS packet would stop all ranks.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    import torch.distributed.fsdp  # noqa: PLC0415

    import evenkeel.trainer_sdk.control.controller  # noqa: PLC0415
    import evenkeel.trainer_sdk.emit.kafka_emitter  # noqa: PLC0415
    import evenkeel.trainer_sdk.replicas  # noqa: F401, PLC0415

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)  # imports some 900 modules


def run_script(job: ScriptJob, settings: Mapping[str, str], failed: Callable[[BaseException], None]) -> int:
    """Run the script to its end, and what it has asked for at its end; returns its exit status.

    Args:
        job: What to run.
        settings: For its environment.
        failed: Told the error that ends it.
    """
    os.environ.update(settings)
    sys.argv = [job.script, *job.arguments]
    status = 0
    try:
        if job.is_module:
            sys.path[0] = os.getcwd()
            runpy.run_module(job.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(job.script).resolve().parent)
            runpy.run_path(job.script, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, int | None):
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            status = EXIT_FAILED
    except BaseException as error:
        traceback.print_exc()
        failed(error)
        sys.last_value, sys.last_type = error, type(error)  # where an interpreter that ends would have them
        status = EXIT_FAILED
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    return status
