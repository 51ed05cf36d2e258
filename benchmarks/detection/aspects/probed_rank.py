"""A rank of the job that is probed; the launcher forks it, so it imports nothing of the services."""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.elastic.engine import Engine
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.launcher.processes.context import RankContext

CONTROLLER_TOKEN = "benchmark"  # noqa: S105 - the controller listens on loopback, for one benchmark


def train(context: RankContext) -> None:
    """Entry point of a rank: trains, answers probes, and notes when each step ended."""
    torch.set_num_threads(1)
    controller = ControlServer(context.mailbox, job_id=context.job_id, job_token=CONTROLLER_TOKEN)
    controller.start()
    (context.run_dir / f"address-{context.rank}").write_text(controller.address())
    with (context.run_dir / f"ended-{context.rank}").open("w", buffering=1) as ended:

        class Noting(Emitter):
            def emit_later(self, build: Callable[[], Measured]) -> None:
                ended.write(f"{time.perf_counter()}\n")

        Engine(replace(context, emitter=Noting())).run()
    controller.stop()
