"""A Kafka that takes only TLS and a password: commands, ranks, launchers and services reach it by the same settings."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.stack.kafka import node
from evenkeel.stack.kafka.node import Kafka
from evenkeel.stack.processes.ports import free_ports
from evenkeel.stack.processes.watchdog import Watchdog
from tests.integration.tls.conftest import Authority

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

USER, PASSWORD = "jobs", "a password with $ and }"
LOOP = """\
import logging, sys, threading

import evenkeel

told = threading.Event()


class Telling(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        told.set()


logging.basicConfig(handlers=[Telling()])
run = evenkeel.start()
for number in range(3):
    with run.iteration(tokens=1) as iteration:
        iteration.loss = float(number)
told.wait(float(sys.argv[1]))
"""
"""Three iterations, then it is there for as long as it is told nothing, or for so many seconds."""


@pytest.fixture(scope="module")
def settings(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Those that lead to it; it is not reached from outside without them."""
    folder = tmp_path_factory.mktemp("kafka")
    (port,) = free_ports(1)
    certificate, key = ours.sign("broker")
    (folder / "keystore.pem").write_text(key.read_text() + certificate.read_text())
    plain, secret = "listeners=PLAINTEXT://{host}:{port}", PASSWORD.replace("}", "}}")
    properties = node.PROPERTIES.replace(plain, f"{plain},SASL_SSL://{{host}}:{port}")
    properties = properties.replace("PLAINTEXT:PLAINTEXT\n", "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL\n")
    properties += f"""\
sasl.enabled.mechanisms=PLAIN
ssl.keystore.type=PEM
ssl.keystore.location={folder / "keystore.pem"}
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{USER}="{secret}";
"""
    watchdog = Watchdog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "PROPERTIES", properties)
        watchdog.start()
        server = Kafka(folder / "server", watchdog)
        try:
            server.start()
            yield {
                "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
                "EVENKEEL_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
                "EVENKEEL_KAFKA_SASL_USERNAME": USER,
                "EVENKEEL_KAFKA_SASL_PASSWORD": PASSWORD,
                "EVENKEEL_KAFKA_CA_FILE": str(ours.ca_file),
            }
        finally:
            server.stop(grace_seconds=0)
            watchdog.stop()


def python(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=clean(environment))


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("EVENKEEL_")}
    return {**outside, **environment}


def test_topics_are_made_a_loop_emits_and_what_it_sent_is_read(settings: Mapping[str, str], tmp_path: Path) -> None:
    applied = python("-m", "evenkeel.cli", "topics", "apply", "--partitions", "2", environment=settings)
    assert applied.returncode == ExitStatus.OK, applied.stderr
    assert python("-m", "evenkeel.cli", "topics", "check", environment=settings).returncode == ExitStatus.OK

    job_id, file = f"job-{uuid.uuid4().hex[:8]}", tmp_path / "job.samples"
    environment = clean({**settings, "EVENKEEL_JOB_ID": job_id, "RANK": "0"})
    with subprocess.Popen([sys.executable, "-c", LOOP, "120"], env=environment) as loop:
        record = partial(python, "-m", "evenkeel.cli", "record", job_id, "--records", "-o", str(file))
        while (recorded := record(environment=settings)).returncode and loop.poll() is None:
            assert "holds nothing of job" in recorded.stderr
        loop.kill()
    assert recorded.returncode == ExitStatus.OK, recorded.stderr
    assert int(recorded.stderr.split()[0]) >= 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"EVENKEEL_KAFKA_SASL_PASSWORD": "another"}, "does not answer"),
        ({"EVENKEEL_KAFKA_CA_FILE": "theirs"}, "does not answer"),
        ({"EVENKEEL_KAFKA_CA_FILE": "/nowhere/ca.pem"}, "EVENKEEL_KAFKA_CA_FILE: there is no file /nowhere/ca.pem"),
        ({"EVENKEEL_KAFKA_SASL_USERNAME": ""}, "needs EVENKEEL_KAFKA_SASL_USERNAME"),
    ],
)
def test_with_a_wrong_setting_the_loop_trains_on_and_is_told(
    settings: Mapping[str, str], theirs: Authority, wrong: dict[str, str], said: str
) -> None:
    wrong = {name: str(theirs.ca_file) if value == "theirs" else value for name, value in wrong.items()}
    loop = python("-c", LOOP, "60", environment={**settings, **wrong, "EVENKEEL_JOB_ID": "job", "RANK": "0"})
    assert loop.returncode == 0, loop.stderr
    assert said in loop.stderr
