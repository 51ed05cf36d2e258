"""What a plain PyTorch loop types to be watched: at most five lines.

    import evenkeel

    run = evenkeel.start()
    for batch in loader:
        with run.iteration(tokens=batch.numel()) as iteration:
            ...
            iteration.loss = loss

Without ``EVENKEEL_KAFKA_BOOTSTRAP_SERVERS`` nothing is emitted, without ``EVENKEEL_FLEET_ADDRESS`` there is no rank
controller, and nothing here ever raises into the loop because a service is away or a setting is wrong.
"""

import atexit
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.real_device import CpuDevice, CudaDevice
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.emitter import Emitter, process_event
from evenkeel.trainer_sdk.emit.farewell import ending_error, farewell
from evenkeel.trainer_sdk.watch.identity import RankClaim, source_of_this_process
from evenkeel.trainer_sdk.watch.run import Run
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.control.controller import Controller

# No handler of ours: in a loop that sets up no logging, warnings go to standard error.
_logger = logging.getLogger("evenkeel")
_ADDRESSES = re.compile(r"\S+:\d{1,5}(\s*,\s*\S+:\d{1,5})*")
_run: "Run | None" = None


def start(*, device: Device | None = None, environment: Mapping[str, str] | None = None) -> Run:
    """Join the job that the environment describes; a second call gives the same run.

    Args:
        device: Measures compute segments; by default CUDA events where CUDA is in use, else the wall clock.
        environment: Settings instead of ``os.environ``.
    """
    global _run
    if _run is None:
        try:
            _run = _join(os.environ if environment is None else environment, device)
        except Exception:
            _logger.warning("the watch cannot begin: this process is not watched", exc_info=True)
            _run = Run(emitter=Emitter(), device=device)
        atexit.register(_stop_at_exit)
    return _run


def stop() -> None:
    """End the run of this process, if there is one."""
    global _run
    if _run is not None:
        run, _run = _run, None
        atexit.unregister(_stop_at_exit)
        run.close()


def _stop_at_exit() -> None:
    try:
        stop()
    except SystemExit as error:  # whose status the interpreter, which ends by an error of its own, would not take
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(error.code or 0))


def _join(settings: Mapping[str, str], device: Device | None) -> Run:
    services = ServiceSettings.from_environment(settings)
    if not services.kafka_bootstrap_servers and not services.fleet_address:
        return Run(emitter=Emitter(), device=device)
    claim = RankClaim()
    is_replica = bool(settings.get("EVENKEEL_REPLICA"))
    if is_replica and settings.get("RANK", "0") != "0":
        return Run(emitter=Emitter(), device=device)  # the first rank of a replica speaks for all of it
    try:
        source = _source(settings, claim)
    except ValueError as error:
        _logger.warning("%s: this process is not watched", error)
        return Run(emitter=Emitter(), device=device)
    emitter, controller = Emitter(), None
    try:
        if services.fleet_address:
            controller = _controller(source, services, can_reshape=is_replica)
    except ValueError as error:
        _logger.warning("%s: this process has no rank controller", error)
    try:
        if services.kafka_bootstrap_servers:
            emitter = _emitter(source, services, settings)
    except ValueError as error:
        _logger.warning("%s: this process emits nothing", error)
    cuda = "torch" in sys.modules and sys.modules["torch"].cuda.is_available()

    def end() -> None:
        error = ending_error()
        if error is not None and controller is not None:
            # First: what a death is taken for depends on whether its cause is known.
            _tell_error(source, services, error)
        for event in farewell(source.rank, source.incarnation, error):
            emitter.emit_event(event)
        emitter.close()
        if controller is not None:
            controller.mailbox.publish(replace(controller.mailbox.state, phase=RankPhase.FINISHED))
            controller.stop()
        claim.release()

    return Run(
        emitter=emitter,
        mailbox=None if controller is None else controller.mailbox,
        device=device or (CudaDevice() if cuda else CpuDevice()),
        torch_device="cuda" if cuda else "cpu",  # whichever the training thread has chosen when a probe runs
        close=end,
    )


def _source(settings: Mapping[str, str], claim: RankClaim) -> Source:
    """Who this process is; from here on nobody else of this machine is."""
    source = source_of_this_process(settings)
    if not claim.take(source.job_id, source.rank, source.incarnation):
        raise ValueError(
            f"another live process says that it is rank {source.rank} of job {source.job_id}; each needs a RANK of its "
            "own, or call start() after init_process_group()"
        )
    return source


def _controller(source: Source, services: ServiceSettings, *, can_reshape: bool) -> "Controller":
    if not services.job_token:
        raise ValueError("EVENKEEL_JOB_TOKEN is not set, so nobody believes what is measured if the job is registered")
    if not _ADDRESSES.fullmatch(services.fleet_address.strip()):
        raise ValueError(f"EVENKEEL_FLEET_ADDRESS is {services.fleet_address!r}, not host:port[,host:port]")
    from evenkeel.trainer_sdk.control.controller import Controller  # noqa: PLC0415 - gRPC loads only where it is wanted
    from evenkeel.trainer_sdk.control.mailbox import Mailbox  # noqa: PLC0415
    from evenkeel.trainer_sdk.control.tls import checked_fleet_ca_file  # noqa: PLC0415

    checked_fleet_ca_file(services.fleet_ca_file)
    mailbox = Mailbox(source.rank, source.incarnation)
    mailbox.publish(replace(mailbox.state, phase=RankPhase.TRAINING, epoch=0))
    try:
        return Controller(mailbox, source, services, can_reshape=can_reshape).start()
    except RuntimeError as error:
        raise ValueError(f"nothing can listen to the scheduler ({error})") from error


def _tell_error(source: Source, services: ServiceSettings, error: BaseException) -> None:
    from evenkeel.trainer_sdk.control.fleet.last_words import as_exit, words_of  # noqa: PLC0415 - loads gRPC

    exits = [as_exit(words_of(error), source.rank, source.incarnation, code=1)]
    services.fleet(source.job_id).report_exits(exits)


def _emitter(source: Source, services: ServiceSettings, settings: Mapping[str, str]) -> Emitter:
    brokers = services.kafka_bootstrap_servers
    if not _ADDRESSES.fullmatch(brokers.strip()):
        raise ValueError(f"EVENKEEL_KAFKA_BOOTSTRAP_SERVERS is {brokers!r}, not host:port[,host:port]")
    emitter = services.emitter(source, settings)
    started = process_pb2.PROCESS_EVENT_KIND_STARTED
    emitter.emit_event(process_event(started, source.rank, source.incarnation, f"process {os.getpid()}"))
    return emitter
