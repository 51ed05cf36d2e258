"""A rank of the job that is probed; the launcher forks it, so it imports nothing of the services."""

import time
from dataclasses import replace

import torch

from trainer_sdk.control.server import ControlServer
from trainer_sdk.elastic.config import config_from_json
from trainer_sdk.elastic.engine import Engine, Step
from trainer_sdk.launcher.context import RankContext

CONTROLLER_TOKEN = "benchmark"  # noqa: S105 - the controller listens on loopback, for one benchmark


def train(context: RankContext) -> None:
    """Entry point of a rank: trains, answers probes, and notes when each step ended."""
    torch.set_num_threads(1)
    config = replace(config_from_json(context.config), job_id=context.job_id, device=context.torch_device)
    controller = ControlServer(context.mailbox, job_id=context.job_id, job_token=CONTROLLER_TOKEN)
    controller.start()
    (context.run_dir / f"address-{context.rank}").write_text(controller.address())
    host, port = context.store_address
    with (context.run_dir / f"ended-{context.rank}").open("w", buffering=1) as ended:

        def note(_: Step) -> None:
            ended.write(f"{time.perf_counter()}\n")

        Engine(
            config,
            rank=context.rank,
            incarnation=context.incarnation,
            mailbox=context.mailbox,
            device=context.device,
            emitter=context.emitter,
            store_address=f"{host}:{port}",
            initial_layout=context.initial_layout,
            links=context.links,
            node_of=context.node_of,
            on_step=note,
        ).run()
    controller.stop()
