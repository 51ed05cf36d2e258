"""The lock of the local Kafka's jars, and what is done with a jar that is not what it says."""

import hashlib
from pathlib import Path

import pytest

from evenkeel.stack.errors import StackError
from evenkeel.stack.kafka import jars as module
from evenkeel.stack.kafka.jars import Jar, kafka_jars, kafka_version, locked_jars

CONTENT = b"a jar"
JAR = Jar(group="org.example", name="kafka_2.13", version="4.1.0", digest=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def kept_by_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where Maven would have the one jar of a lock of its own; nothing is fetched yet."""
    place = tmp_path / "maven" / "org" / "example" / "kafka_2.13" / "4.1.0" / "kafka_2.13-4.1.0.jar"
    place.parent.mkdir(parents=True)
    lock = tmp_path / "kafka.lock"
    lock.write_text(f"# one\n{JAR.coordinates} sha256:{JAR.digest}\n")
    monkeypatch.setattr(module, "LOCK_PATH", lock)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("M2_REPO", str(tmp_path / "maven"))
    return place


def test_every_line_of_the_lock_that_is_no_comment_is_a_jar() -> None:
    lines = [line for line in module.LOCK_PATH.read_text().splitlines() if not line.startswith("#")]
    assert len(locked_jars()) == len(lines) == len({(jar.group, jar.name) for jar in locked_jars()})
    own = {jar.version for jar in locked_jars() if jar.group == "org.apache.kafka"}
    assert own == {kafka_version()}


def test_a_jar_that_maven_keeps_is_taken_from_there(kept_by_maven: Path) -> None:
    kept_by_maven.write_bytes(CONTENT)
    said: list[str] = []
    folder = kafka_jars(said.append)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("kafka_2.13-4.1.0.jar", CONTENT)]
    assert said == ["fetching Kafka 4.1.0: 1 of 1 jars"]


def test_a_jar_that_is_not_what_the_lock_says_is_refused_and_nothing_is_left(kept_by_maven: Path) -> None:
    kept_by_maven.write_bytes(CONTENT + b" with something in it")
    with pytest.raises(StackError, match=r"org\.example:kafka_2\.13:4\.1\.0 is not what kafka\.lock says"):
        kafka_jars()
    assert [path.name for path in (module.cache_folder()).iterdir()] == ["kafka.lock"]
