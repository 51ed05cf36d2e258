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
    checks: tuple[Callable[[], Check], ...] = (
        _python,
        _packages,
        _torch,
        _java,
        _kafka,
        _postgres,
        _folder,
        _disk,
        _memory,
        _processors,
        _ports,
        _docker,
    )
    for check in checks:
        yield check()


def _python() -> Check:
    # Older ones do not get this far; make setup says so.
    return Check(name="Python", outcome=Outcome.OK, found=".".join(map(str, sys.version_info[:3])))


def _packages() -> Check:
    versions = {name: _version(name) for name in PACKAGES}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Check(name="packages", outcome=Outcome.MISSING, found=f"no {', '.join(absent)}", advice="make setup")
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check(name="packages", outcome=Outcome.OK, found=found)


def _torch() -> Check:
    found = _version("torch")
    if found is None:
        return Check(
            name="torch",
            outcome=Outcome.WARNING,
            found="none",
            advice="make setup; services need none, but jobs and the demo do",
        )
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < MIN_TORCH:
        return Check(name="torch", outcome=Outcome.MISSING, found=found, advice="install torch 2.15 or newer")
    return Check(name="torch", outcome=Outcome.OK, found=found)


def _java() -> Check:
    try:
        program = java_program()
    except StackError as error:
        if os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"):
            return Check(name="Java", outcome=Outcome.OK, found="not needed: a Kafka is given")
        return Check(name="Java", outcome=Outcome.MISSING, found="none", advice=str(error))
    return Check(name="Java", outcome=Outcome.OK, found=f"{java_version(program)}: {program}")


def _kafka() -> Check:
    if os.environ.get("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS"):
        return Check(name="Kafka", outcome=Outcome.OK, found="a Kafka is given")
    if (cache_folder() / f"kafka-{kafka_version()}").is_dir():
        return Check(name="Kafka", outcome=Outcome.OK, found=f"{kafka_version()} is fetched")
    if _version("jgo") is None:
        return Check(name="Kafka", outcome=Outcome.MISSING, found="nothing that fetches it", advice="make setup")
    return Check(name="Kafka", outcome=Outcome.OK, found=f"{kafka_version()} will be fetched at the first start")


def _postgres() -> Check:
    if os.environ.get("EVENKEEL_DATABASE_URL"):
        return Check(name="PostgreSQL", outcome=Outcome.OK, found="a server is given")
    try:
        programs = postgres_programs()
    except StackError as error:
        return Check(name="PostgreSQL", outcome=Outcome.MISSING, found="none", advice=str(error))
    return Check(name="PostgreSQL", outcome=Outcome.OK, found=str(programs.parent))


def _folder() -> Check:
    root = checkout_root()
    if os.access(root, os.W_OK):
        return Check(name="checkout", outcome=Outcome.OK, found=str(root))
    return Check(
        name="checkout",
        outcome=Outcome.MISSING,
        found=f"{root} cannot be written",
        advice="use a checkout of your own",
    )


def _disk() -> Check:
    free = shutil.disk_usage(checkout_root()).free
    found = f"{free / 1024**3:.1f} GiB free"
    if free >= MIN_DISK_BYTES:
        return Check(name="disk", outcome=Outcome.OK, found=found)
    return Check(name="disk", outcome=Outcome.WARNING, found=found, advice="free 2 GiB: Kafka, PostgreSQL and reports")


def _memory() -> Check:
    # What macOS does not tell is not a fault.
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return Check(name="memory", outcome=Outcome.OK, found="unknown")
    found = f"{num_bytes / 1024**3:.1f} GiB"
    if num_bytes >= MIN_MEMORY_BYTES:
        return Check(name="memory", outcome=Outcome.OK, found=found)
    return Check(
        name="memory", outcome=Outcome.WARNING, found=found, advice="the demo's 8 ranks, Kafka and services want 4 GiB"
    )


def _processors() -> Check:
    count = os.cpu_count() or 1
    if count >= MIN_PROCESSORS:
        return Check(name="processors", outcome=Outcome.OK, found=str(count))
    return Check(
        name="processors", outcome=Outcome.WARNING, found=str(count), advice="times are only right with 2 or more"
    )


def _ports() -> Check:
    try:
        ports = free_ports(8)
    except OSError as error:
        return Check(
            name="ports", outcome=Outcome.MISSING, found=str(error), advice="allow programs to listen on 127.0.0.1"
        )
    return Check(name="ports", outcome=Outcome.OK, found=f"{len(ports)} free on loopback")


def _docker() -> Check:
    if shutil.which("docker") is not None:
        return Check(name="Docker", outcome=Outcome.OK, found=shutil.which("docker") or "")
    return Check(name="Docker", outcome=Outcome.OK, found="none; only make test-compose and docker-compose.yml need it")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
