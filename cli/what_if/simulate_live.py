"""``evenkeel simulate --emit``: the scenario's job in real time, for services that cannot tell it from a real one."""

import asyncio
import os
import secrets
import time
from dataclasses import replace
from typing import Any

import typer
from aiokafka.errors import KafkaError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import kafka_access, setting
from evenkeel.simulator.fleet.scenario.scenario import Scenario
from evenkeel.simulator.live.live_run import LiveReport, LiveRun, Services, simulated_job
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings


def emit_scenario(
    context: typer.Context,
    scenario: Scenario,
    *,
    speed: float,
    seconds: float | None,
    job_id: str | None,
    seed: int | None,
) -> dict[str, Any]:
    """Runs the scenario against the services; what happened, as plain data.

    Raises:
        CommandError: No services, a bad speed, or the services went away.
    """
    name = job_id or f"simulated-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        settings = ServiceSettings.from_environment(os.environ)
        controller_tls = settings.tls()
    except ValueError as error:
        raise CommandError(str(error), status=ExitStatus.USAGE) from error
    kafka = kafka_access(context)
    services = Services(
        bootstrap_servers=kafka.bootstrap_servers,
        security=kafka.security,
        fleet_address=setting(context, "EVENKEEL_FLEET_ADDRESS"),
        fleet_token=setting(context, "EVENKEEL_FLEET_TOKEN"),
        fleet_ca_file=settings.fleet_ca_file,
        controller_tls=controller_tls,
    )
    chosen = scenario.seed if seed is None else seed
    try:
        job = simulated_job(scenario, name, speed, chosen)
    except ValueError as error:
        raise CommandError(str(error), status=ExitStatus.USAGE) from error
    faults = [
        replace(each, at_seconds=each.at_seconds / speed, duration_seconds=each.duration_seconds / speed)
        for each in scenario.all_faults(chosen)
    ]
    total = scenario.duration_seconds / speed if seconds is None else seconds
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=total)
        begun = time.monotonic()

        def tell(report: LiveReport) -> None:
            text = f"{name}: iteration {report.num_iterations}, epoch {report.epochs[-1]}"
            progress.update(bar, completed=time.monotonic() - begun, description=text)

        run = LiveRun(
            job,
            faults,
            num_devices=scenario.topology.num_devices,
            services=services,
            job_token=secrets.token_urlsafe(24),
            on_progress=tell,
        )
        try:
            report = asyncio.run(run.run(total))
        except (KafkaError, OSError, RuntimeError) as error:
            raise CommandError(f"the simulated job ended: {error}", status=ExitStatus.UNHEALTHY) from error
    return {
        "job_id": name,
        "num_iterations": report.num_iterations,
        "num_records": report.num_records,
        "num_faults": report.num_faults,
        "epochs": report.epochs,
        "waited_seconds": report.waited_seconds,
    }
