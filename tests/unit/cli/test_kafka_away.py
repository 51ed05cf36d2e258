"""A server that takes connections and never answers, as a frozen Kafka does, is named with a reason."""

import socket
import sys

import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.main import main
from evenkeel.offline.samples import record


@pytest.mark.parametrize("words", [("why", "mine"), ("record", "mine", "-o", "mine.samples")])
def test_a_kafka_that_never_answers_is_said_not_to_answer(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("EVENKEEL_FLEET_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", "a-token-of-the-fleet")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", address)
        monkeypatch.setattr(sys, "argv", ["evenkeel", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == ExitStatus.UNHEALTHY
    assert f"Kafka at {address} cannot be read: no answer in time" in capsys.readouterr().err
