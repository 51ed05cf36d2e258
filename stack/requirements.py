"""Which programs the stack needs besides Python, and how to get them."""

import re
import shutil
import subprocess

from evenkeel.stack.errors import StackError

MIN_JAVA_VERSION = 17
INSTALL_HINT = (
    "install Java 17 or newer and Maven:\n"
    "    Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless maven\n"
    "    Fedora:          sudo dnf install java-21-openjdk-headless maven\n"
    "    macOS:           brew install openjdk@17 maven\n"
    "or use a Kafka that runs already: set EVENKEEL_KAFKA_BOOTSTRAP_SERVERS to host:port"
)


def java_version() -> int | None:
    """Major version of the ``java`` on PATH; None where there is none that runs."""
    if shutil.which("java") is None:
        return None
    # macOS has a java that only says where to get one: it fails.
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=30)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if answer.returncode == 0 and found else None


def require_java() -> None:
    """Checks that Kafka can run.

    Raises:
        StackError: No Java, or one that is too old.
    """
    version = java_version()
    if version is None:
        raise StackError(f"the local Kafka needs Java, and there is none on PATH; {INSTALL_HINT}")
    if version < MIN_JAVA_VERSION:
        raise StackError(f"the local Kafka needs Java {MIN_JAVA_VERSION}, and this is Java {version}; {INSTALL_HINT}")


def require_maven() -> None:
    """Checks that Kafka can be fetched.

    Raises:
        StackError: No Maven.
    """
    if shutil.which("mvn") is None:
        raise StackError(f"Kafka is fetched once with Maven (mvn), and there is none on PATH; {INSTALL_HINT}")
