"""Which brokers are given the classes that were kept of an earlier one."""

from pathlib import Path

import pytest

from evenkeel.stack.kafka import node
from evenkeel.stack.kafka.node import Kafka, kept_classes_path
from evenkeel.stack.processes.watchdog import Watchdog


def test_a_broker_is_given_them_once_they_are_there_unless_it_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(node, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(node, "kafka_jars", lambda say: tmp_path)
    monkeypatch.setattr(node, "java_program", lambda: "java")
    monkeypatch.setattr(Kafka, "_start_once", lambda self, java: started.append(java))
    Kafka(tmp_path, Watchdog()).start()
    kept_classes_path().touch()
    Kafka(tmp_path, Watchdog()).start()
    Kafka(tmp_path, Watchdog(), keep_classes=tmp_path / "new").start()
    option = f"-XX:AOTCache={kept_classes_path()}"
    assert [option in java for java in started] == [False, True, False]
