"""The life of one rank process: set up its surroundings, call the entry point, say how it ended."""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.control.controller import Controller
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.emulated_device import EmulatedDevice
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, Links, LinkTable
from evenkeel.trainer_sdk.devices.real_device import CpuDevice, CudaDevice
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.emitter import process_event
from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.launcher.processes.context import RankContext
from evenkeel.trainer_sdk.launcher.progress.progress_board import ProgressBoard

EXIT_FINISHED = 0
_EVICTION_GRACE_SECONDS = 2.0


def load_entry_point(entry_point: str) -> Callable[[RankContext], None]:
    """The function behind ``module:function``.

    Raises:
        ValueError: There is no such function.
    """
    module_name, _, function_name = entry_point.partition(":")
    function = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(function):
        raise ValueError(f"entry_point {entry_point!r}: {module_name} has no function {function_name}")
    loaded: Callable[[RankContext], None] = function
    return loaded


def run_rank(spec: JobSpec, rank: int, incarnation: int, store_address: str) -> int:
    """Run one rank to its end on the calling thread, which is its training thread; returns the exit status.

    Raises:
        BaseException: What the entry point ends with.
    """
    _set_up_process(spec, rank, incarnation)
    mailbox = Mailbox(rank, incarnation)
    source = Source(
        job_id=spec.job_id, rank=rank, incarnation=incarnation, node=spec.node_of(rank), device=spec.device_of(rank)
    )
    emitter = spec.emitter(source)
    controller = Controller(mailbox, source, spec, is_launched=True).start() if spec.job_token else None
    detail = f"process {os.getpid()}" + ("" if controller is None else f", controller at {controller.address}")
    emitter.emit_event(process_event(process_pb2.PROCESS_EVENT_KIND_STARTED, rank, incarnation, detail))
    threading.Thread(target=_end_when_evicted, args=(mailbox,), name="evenkeel-eviction", daemon=True).start()
    try:
        load_entry_point(spec.entry_point)(
            RankContext(
                job_id=spec.job_id,
                rank=rank,
                incarnation=incarnation,
                mailbox=mailbox,
                device=_device(spec, rank, incarnation),
                torch_device=f"cuda:{rank % spec.devices_per_node}" if spec.device_kind is DeviceKind.CUDA else "cpu",
                emitter=emitter,
                store_address=store_address,
                config=spec.config,
                initial_layout=spec.layout if incarnation == 0 else None,
                run_dir=spec.run_dir,
                links=_links(spec),
                node_of=spec.node_of,
                note=partial(ProgressBoard(spec.progress_board_path).write, rank),
            )
        )
        mailbox.publish(replace(mailbox.state, phase=RankPhase.FINISHED))
        return EXIT_EVICTED if mailbox.leaving() else EXIT_FINISHED
    finally:
        emitter.close()
        if controller is not None:
            controller.stop()


def _set_up_process(spec: JobSpec, rank: int, incarnation: int) -> None:
    import torch  # noqa: PLC0415 - the zygote has loaded it; the supervisor never needs it

    torch.set_num_threads(spec.num_threads)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(spec.world_size), LOCAL_RANK=str(rank % spec.devices_per_node))
    if spec.logs_to_files:
        folder = spec.run_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / f"rank-{rank}-{incarnation}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank}.{incarnation} %(name)s: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the emitter says once that Kafka is away


def _device(spec: JobSpec, rank: int, incarnation: int) -> Device:
    if spec.device_kind is DeviceKind.CPU:
        return CpuDevice()
    if spec.device_kind is DeviceKind.CUDA:
        return CudaDevice()
    table = SpeedTable(spec.speed_table_path)
    if incarnation:  # the device of a new process does not hang
        table.set_hangs(rank, False)
    return EmulatedDevice(
        flops_per_second=spec.flops_per_second,
        speed=lambda: table.speed(rank),
        hangs=lambda: table.hangs(rank),
        input_seconds=lambda: table.input_seconds(rank),
    )


def _links(spec: JobSpec) -> Links | None:
    if not spec.link_bytes_per_second:
        return None
    table = LinkTable(spec.link_table_path)
    return EmulatedLinks(
        bytes_per_second=spec.link_bytes_per_second,
        latency_seconds=spec.link_latency_seconds,
        factor=table.factor,
    )


def _end_when_evicted(mailbox: Mailbox) -> None:
    """An evicted rank may be stuck for good: after a grace period its process ends whatever it is doing."""
    while not mailbox.wait_until_leaving(60.0):
        pass
    threading.Event().wait(_EVICTION_GRACE_SECONDS)
    os._exit(EXIT_EVICTED)
