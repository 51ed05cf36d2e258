"""Fetches Kafka's jars, once for each checkout: those that ``kafka.lock`` names, bit by bit."""

import hashlib
import importlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evenkeel.stack.errors import StackError
from evenkeel.stack.paths import cache_folder
from evenkeel.stack.processes.locks import locked

LOCK_PATH = Path(__file__).with_name("kafka.lock")
NUM_FETCHES_AT_ONCE = 8
READ_TIMEOUT_SECONDS = 60
_PAUSES_SECONDS = (0.5, 1.0, 2.0)
_LINE = re.compile(r"(?P<group>\S+):(?P<name>\S+):(?P<version>\S+) sha256:(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of the lock: where Maven's repositories have a jar, and the SHA-256 of what is in it."""

    group: str
    name: str
    version: str
    digest: str

    @property
    def coordinates(self) -> str:
        """As Maven writes them."""
        return f"{self.group}:{self.name}:{self.version}"


def locked_jars() -> list[Jar]:
    """All that the broker needs."""
    return [Jar(**found.groupdict()) for found in map(_LINE.fullmatch, LOCK_PATH.read_text().splitlines()) if found]


def kafka_version() -> str:
    """Version of the local Kafka."""
    return next(jar.version for jar in locked_jars() if jar.name.startswith("kafka_"))


def kafka_jars(say: Callable[[str], None] = lambda _: None) -> Path:
    """Folder with Kafka's jars, fetched when it is not there yet (some seconds, 43 MB).

    A jar that Maven keeps on this machine is taken from there. Several processes may call this at once; the folder
    appears complete or not at all.

    Args:
        say: Told how far it is, from threads of its own.

    Raises:
        StackError: A jar could not be fetched, or is not what the lock says.
    """
    cache = cache_folder()
    target = cache / f"kafka-{kafka_version()}"
    if target.is_dir():
        return target
    with locked(cache / "kafka.lock"):
        if target.is_dir():
            return target
        if find_spec("jgo") is None:
            raise StackError(
                "Kafka is fetched with the package jgo, and it is not installed: make setup; or use a Kafka that runs "
                "already: set EVENKEEL_KAFKA_BOOTSTRAP_SERVERS to host:port"
            )
        fetched = Path(tempfile.mkdtemp(prefix="kafka-", dir=cache))
        try:
            _fetch(locked_jars(), fetched, say)
            # Kafka may run as another user than the one that fetched it.
            fetched.chmod(0o755)
            os.replace(fetched, target)
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return target


def _fetch(jars: list[Jar], target: Path, say: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as downloads:
        # It writes a file in place: not into what Maven keeps, where half of one would stay after a kill.
        context = importlib.import_module("jgo.maven").MavenContext(
            repo_cache=Path(downloads), local_repos=[_maven_folder()], timeout=READ_TIMEOUT_SECONDS
        )
        done: list[Jar] = []

        def fetch(jar: Jar) -> None:
            shutil.copyfile(_resolved(context, jar), target / f"{jar.name}-{jar.version}.jar")
            done.append(jar)
            say(f"fetching Kafka {kafka_version()}: {len(done)} of {len(jars)} jars")

        with ThreadPoolExecutor(max_workers=NUM_FETCHES_AT_ONCE, thread_name_prefix="fetch") as pool:
            for each in [pool.submit(fetch, jar) for jar in jars]:
                try:
                    each.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise


def _resolved(context: Any, jar: Jar) -> Path:
    for pause_seconds in (*_PAUSES_SECONDS, None):
        try:
            path = Path(context.create_dependency(jar.coordinates).artifact.resolve())
            break
        except (OSError, RuntimeError) as error:
            if pause_seconds is None:
                raise StackError(f"{jar.coordinates} could not be fetched; is there a network? {error}") from error
            time.sleep(pause_seconds)
    if hashlib.sha256(path.read_bytes()).hexdigest() != jar.digest:
        raise StackError(f"{jar.coordinates} is not what {LOCK_PATH.name} says: {path}; delete it and try again")
    return path


def _maven_folder() -> Path:
    return Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository")
