"""What this machine needs to run Evenkeel, each with what was found and how to get it."""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from evenkeel.stack.errors import StackError
from evenkeel.stack.kafka.jars import kafka_version
from evenkeel.stack.kafka.java import java_program, java_version
from evenkeel.stack.paths import cache_folder, checkout_root
from evenkeel.stack.postgres.server import postgres_programs
from evenkeel.stack.processes.ports import free_ports

MIN_DISK_BYTES = 2 * 1024**3
MIN_MEMORY_BYTES = 4 * 1024**3
MIN_PROCESSORS = 2
MIN_TORCH = (2, 15)
PACKAGES = ("aiokafka", "grpcio", "protobuf", "sqlalchemy", "psycopg", "alembic", "river", "scipy")


class Outcome(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: What was looked at.
        outcome: How it went.
        found: What is there.
        advice: What to do; empty when all is well.
    """

    name: str
    outcome: Outcome
    found: str
    advice: str = ""


def all_checks() -> Iterator[Check]:
    """Every check, in the order in which a person would fix things."""
    for name, look in _CHECKS.items():
        outcome, found, advice = look()
        yield Check(name=name, outcome=outcome, found=found, advice=advice)


_Seen = tuple[Outcome, str, str]
"""How a check went, what is there, and what to do."""


def _ok(found: str) -> _Seen:
    return Outcome.OK, found, ""


def _python() -> _Seen:
    # Older ones do not get this far; make setup says so.
    return _ok(".".join(map(str, sys.version_info[:3])))


def _packages() -> _Seen:
    versions = {name: _version(name) for name in PACKAGES}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Outcome.MISSING, f"no {', '.join(absent)}", "make setup"
    return _ok(", ".join(f"{name} {version}" for name, version in versions.items()))


def _torch() -> _Seen:
    found = _version("torch")
    if found is None:
        return Outcome.WARNING, "none", "make setup; services need none, but jobs and the demo do"
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < MIN_TORCH:
        return Outcome.MISSING, found, "install torch 2.15 or newer"
    return _ok(found)


def _java() -> _Seen:
    try:
        program = java_program()
    except StackError as error:
        if os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"):
            return _ok("not needed: a Kafka is given")
        return Outcome.MISSING, "none", str(error)
    return _ok(f"{java_version(program)}: {program}")


def _kafka() -> _Seen:
    if os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"):
        return _ok("a Kafka is given")
    if (cache_folder() / f"kafka-{kafka_version()}").is_dir():
        return _ok(f"{kafka_version()} is fetched")
    if _version("jgo") is None:
        return Outcome.MISSING, "nothing that fetches it", "make setup"
    return _ok(f"{kafka_version()} will be fetched at the first start")


def _postgres() -> _Seen:
    if os.environ.get("EVENKEEL_DATABASE_URL"):
        return _ok("a server is given")
    try:
        programs = postgres_programs()
    except StackError as error:
        return Outcome.MISSING, "none", str(error)
    return _ok(str(programs.parent))


def _folder() -> _Seen:
    root = checkout_root()
    if os.access(root, os.W_OK):
        return _ok(str(root))
    return Outcome.MISSING, f"{root} cannot be written", "use a checkout of your own"


def _disk() -> _Seen:
    free = shutil.disk_usage(checkout_root()).free
    found = f"{free / 1024**3:.1f} GiB free"
    if free >= MIN_DISK_BYTES:
        return _ok(found)
    return Outcome.WARNING, found, "free 2 GiB: Kafka, PostgreSQL and reports"


def _memory() -> _Seen:
    # What macOS does not tell is not a fault.
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _ok("unknown")
    found = f"{num_bytes / 1024**3:.1f} GiB"
    if num_bytes >= MIN_MEMORY_BYTES:
        return _ok(found)
    return Outcome.WARNING, found, "the demo's 8 ranks, Kafka and services want 4 GiB"


def _processors() -> _Seen:
    count = os.cpu_count() or 1
    if count >= MIN_PROCESSORS:
        return _ok(str(count))
    return Outcome.WARNING, str(count), "times are only right with 2 or more"


def _ports() -> _Seen:
    try:
        ports = free_ports(8)
    except OSError as error:
        return Outcome.MISSING, str(error), "allow programs to listen on 127.0.0.1"
    return _ok(f"{len(ports)} free on loopback")


def _docker() -> _Seen:
    return _ok(shutil.which("docker") or "none; only make test-compose and docker-compose.yml need it")


_CHECKS: dict[str, Callable[[], _Seen]] = {
    "Python": _python,
    "packages": _packages,
    "torch": _torch,
    "Java": _java,
    "Kafka": _kafka,
    "PostgreSQL": _postgres,
    "checkout": _folder,
    "disk": _disk,
    "memory": _memory,
    "processors": _processors,
    "ports": _ports,
    "Docker": _docker,
}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
