"""Fetches Kafka's jars, once for each checkout."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from evenkeel.stack.errors import StackError
from evenkeel.stack.locks import locked
from evenkeel.stack.paths import cache_folder
from evenkeel.stack.requirements import require_maven

POM_PATH = Path(__file__).with_name("pom.xml")
FETCH_TIMEOUT_SECONDS = 600


def kafka_version() -> str:
    """Version of the local Kafka, from ``stack/pom.xml``."""
    found = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", POM_PATH.read_text())
    assert found is not None, "stack/pom.xml names no kafka.version"
    return found.group(1)


def kafka_jars() -> Path:
    """Folder with Kafka's jars, fetched with Maven when it is not there yet (some seconds, 43 MB).

    Several processes may call this at once; the folder appears complete or not at all.

    Raises:
        StackError: Maven is missing or failed.
    """
    cache = cache_folder()
    target = cache / f"kafka-{kafka_version()}"
    if target.is_dir():
        return target
    require_maven()
    with locked(cache / "kafka.lock"):
        if target.is_dir():
            return target
        fetched = Path(tempfile.mkdtemp(prefix="kafka-", dir=cache))
        try:
            _copy_dependencies(fetched)
            # Kafka may run as another user than the one that fetched it.
            fetched.chmod(0o755)
            os.replace(fetched, target)
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return target


def _copy_dependencies(target: Path) -> None:
    command = ["mvn", "--quiet", "--batch-mode", "--strict-checksums", "--file", str(POM_PATH)]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=FETCH_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(f"Maven did not fetch Kafka in {FETCH_TIMEOUT_SECONDS} s; is there a network?") from error
    if done.returncode != 0 or not any(target.glob("kafka_*.jar")):
        said = "\n".join(f"    {line}" for line in done.stdout.splitlines()[-12:])
        raise StackError(f"Maven could not fetch Kafka (status {done.returncode}); check the network; it said:\n{said}")
