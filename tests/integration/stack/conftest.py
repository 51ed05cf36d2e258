import shutil
import uuid
from collections.abc import Iterator

import pytest

from evenkeel.stack.stack import Stack


@pytest.fixture
def on_running_servers(
    kafka_bootstrap: str, fresh_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stack]:
    """A stack of one service that is not started yet."""
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", fresh_database_url)
    stack = Stack(f"test-{uuid.uuid4().hex[:8]}", services=("telemetry",), keep_data=False)
    yield stack
    stack.stop()
    shutil.rmtree(stack.folder)
