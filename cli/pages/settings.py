"""``docs/settings.md``, from the settings classes.

The classes are the truth; what the SDK, the command line and docker-compose.yml read besides is listed here.
"""

import importlib

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from evenkeel.stack.services import SERVICE_NAMES

SETTINGS_CLASSES = {
    "telemetry": "TelemetrySettings",
    "detector": "DetectorSettings",
    "scheduler": "SchedulerSettings",
}
PREFIX = "EVENKEEL_"
INTRODUCTION = """\
# Settings

One prefix, `EVENKEEL_`, and the same names in code, in docker-compose.yml and here. `make generate` writes this
page from the settings classes. A wrong setting ends a service with status 2 and one line that names it.
"""
# What training processes and the command line read; each without a default of its own.
CLIENT_SETTINGS = {
    "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "brokers, `host:port[,host:port]`; unset: a rank emits nothing",
    "EVENKEEL_KAFKA_SECURITY_PROTOCOL": "how to talk to Kafka, with `EVENKEEL_KAFKA_SASL_MECHANISM`, "
    "`EVENKEEL_KAFKA_SASL_USERNAME`, `EVENKEEL_KAFKA_SASL_PASSWORD` and `EVENKEEL_KAFKA_CA_FILE`, as services do",
    "EVENKEEL_DATABASE_URL": "only `evenkeel` and the local stack: an existing server to use",
    "EVENKEEL_FLEET_ADDRESS": "`host:port[,host:port]` of the fleet API, of each scheduler; unset: a rank has no controller",
    "EVENKEEL_FLEET_TOKEN": "the fleet API's token: registers jobs, lists all of them",
    "EVENKEEL_FLEET_CA_FILE": "PEM file with the certificates that the fleet API's is signed by; unset: no TLS to it",
    "EVENKEEL_JOB_ID": "the job that this process belongs to",
    "EVENKEEL_JOB_TOKEN": "the job's own token, at least 16 characters, which also signs what its processes measure; "
    "`evenkeel run` makes one up",
    "EVENKEEL_CONTROLLER_BIND_HOST": "address that rank controllers listen on; unset: what the job file says, else "
    "that of the interface by which the fleet API is reached",
    "EVENKEEL_CONTROLLER_ADVERTISE_HOST": "name under which schedulers reach them, where it differs",
    "EVENKEEL_RANK_CERTIFICATE": "PEM file with the certificate chain that a rank shows; unset: no TLS to it",
    "EVENKEEL_RANK_KEY": "PEM file with its private key",
    "EVENKEEL_SCHEDULER_CA_FILE": "PEM file with the certificates that the scheduler's is signed by; "
    "set: rank controllers ask for it (mutual TLS)",
    "EVENKEEL_STORE": "`host:port` of each store of a job of replicas, `a:29400,b:29400,c:29400`; "
    "unset: the loop trains as its only replica",
    "EVENKEEL_REPLICA": "which replica this process belongs to, from 0",
    "EVENKEEL_NUM_REPLICAS": "replicas of the job",
    "EVENKEEL_TOKEN": "tells a replica's processes from those that it had before; `evenkeel launch` makes one up",
    "EVENKEEL_HANG_SECONDS": "a replica whose step makes no progress for so long is counted out; 300 unless set",
}
# What docker-compose.yml puts in from the shell or an .env file.
COMPOSE_SETTINGS = {
    "EVENKEEL_PUBLISH_HOST": "address that the ports are published on; default `127.0.0.1`",
    "EVENKEEL_PUBLISH_NAME": "name under which clients outside find Kafka; default `localhost`",
    "EVENKEEL_KAFKA_PORT": "published port of Kafka; default `9092`",
    "EVENKEEL_DATABASE_PORT": "published port of PostgreSQL; default `5432`",
    "EVENKEEL_FLEET_PORT": "published port of the first scheduler's fleet API; default `7600`",
    "EVENKEEL_SECOND_FLEET_PORT": "published port of the second scheduler's; default `7601`",
    "EVENKEEL_DATABASE_PASSWORD": "password of the database's user; has a default for development",
}


def settings_class(service: str) -> type[BaseSettings]:
    """The settings class of a service."""
    found: type[BaseSettings] = getattr(
        importlib.import_module(f"evenkeel.services.{service}.settings"), SETTINGS_CLASSES[service]
    )
    return found


def service_settings() -> dict[str, tuple[FieldInfo, list[str]]]:
    """Every setting of the services by its environment name, with the services that read it."""
    found: dict[str, tuple[FieldInfo, list[str]]] = {}
    for service in SERVICE_NAMES:
        for field_name, info in settings_class(service).model_fields.items():
            found.setdefault(PREFIX + field_name.upper(), (info, []))[1].append(service)
    return found


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Services", "", "| name | read by | default | meaning |", "|---|---|---|---|"]
    for name, (info, services) in service_settings().items():
        who = "all services" if len(services) == len(SERVICE_NAMES) else ", ".join(services)
        lines.append(f"| `{name}` | {who} | {_default(info)} | {info.description} |")
    lines += ["", "## Training processes and the command line", "", "| name | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in CLIENT_SETTINGS.items()]
    lines += ["", "## docker-compose.yml", "", "Besides the above, from the shell or an `.env` file:", ""]
    lines += ["| name | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in COMPOSE_SETTINGS.items()]
    return "\n".join(lines) + "\n"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.default
    return "none" if default is None else f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
