"""The services as processes: what each is started with, and how to ask whether it is ready.

Each may run several times: its first process has the service's name, the next ``<service>-2``.
"""

import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenkeel.stack.addresses import Addresses
from evenkeel.stack.processes.ports import LOOPBACK

# In the order of the data: each one's input is there before it starts, and it stops before its input does.
SERVICE_NAMES = ("telemetry", "detector", "scheduler")
HEALTH_TIMEOUT_SECONDS = 2.0
# One that dies is replaced by another of its kind so soon; our broker takes what others may refuse.
SESSION_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProcess:
    """How to run one service.

    Attributes:
        name: Of the process, as in :func:`process_names`.
        command: Program and arguments.
        environment: Settings on top of our own environment.
        metrics_port: Where it serves ``/healthz``.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    metrics_port: int


def process_names(services: Sequence[str], num_instances: int) -> tuple[str, ...]:
    """Names of the processes, in the order of the services."""
    return tuple(
        service if number == 1 else f"{service}-{number}"
        for service in services
        for number in range(1, num_instances + 1)
    )


def service_process(name: str, addresses: Addresses) -> ServiceProcess:
    """How to run the process ``name`` in a stack with these addresses."""
    service, _, number = name.partition("-")
    metrics_port = addresses.metrics_ports[name]
    settings = addresses.environment()
    if service == "scheduler":
        settings["EVENKEEL_FLEET_ADDRESS"] = fleet_address_of(name, addresses)
    else:
        # Least privilege: only the scheduler serves the fleet API.
        settings = {key: value for key, value in settings.items() if not key.startswith("EVENKEEL_FLEET_")}
    settings["EVENKEEL_INSTANCE_ID"] = number or "1"
    settings["EVENKEEL_METRICS_PORT"] = str(metrics_port)
    settings["EVENKEEL_KAFKA_SESSION_TIMEOUT_SECONDS"] = str(SESSION_SECONDS)
    # One thread for numerics: the services share two cores with the job.
    settings["OMP_NUM_THREADS"] = "1"
    settings["OPENBLAS_NUM_THREADS"] = "1"
    command = (sys.executable, "-m", f"evenkeel.services.{service}")
    return ServiceProcess(name=name, command=command, environment=settings, metrics_port=metrics_port)


def fleet_address_of(name: str, addresses: Addresses) -> str:
    """Where the scheduler's process ``name`` serves the fleet API."""
    number = name.partition("-")[2] or "1"
    return addresses.fleet_address.split(",")[int(number) - 1]


def is_healthy(metrics_port: int) -> bool:
    """Whether ``/healthz`` on this loopback port answers 200."""
    return not health_problem(metrics_port)


def health_problem(metrics_port: int) -> str:
    """What keeps ``/healthz`` on this loopback port from answering 200, in one line; empty where it does."""
    connection = http.client.HTTPConnection(LOOPBACK, metrics_port, timeout=HEALTH_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        if response.status == http.client.OK:
            return ""
        parts = json.loads(response.read())["parts"].items()
        missed = ", ".join(f"{name}: {part['detail']}" for name, part in parts if not part["ready"])
        return missed or f"/healthz answers {response.status}"
    except (OSError, http.client.HTTPException) as error:
        return f"/healthz does not answer: {error}"
    except (ValueError, LookupError, TypeError):
        return f"/healthz answers {response.status}"
    finally:
        connection.close()
