"""``evenkeel stack status`` of a part that is not well says what it misses."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from evenkeel.cli.errors import ExitStatus
from evenkeel.cli.main import main
from evenkeel.stack import paths
from evenkeel.stack.addresses import Addresses
from evenkeel.stack.processes.pids import start_mark
from evenkeel.stack.state import Phase, ProcessState, StackState, write_state

_MISSES = {
    "ready": False,
    "parts": {
        "kafka": {"ready": True, "detail": ""},
        "postgres": {"ready": False, "detail": "history: TimeoutError: no answer in time"},
    },
}


class _Unwell(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@pytest.fixture(params=[json.dumps(_MISSES), "not what it should be"])
def body(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def port(body: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(_Unwell, "body", body.encode())
    with HTTPServer(("127.0.0.1", 0), _Unwell) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def said_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, Addresses], str]:
    """Everything that is said of a stack at these addresses, a part of which has a process that lives and is unwell."""

    def said(part: str, addresses: Addresses) -> str:
        monkeypatch.setattr(paths, "checkout_root", lambda: tmp_path)
        here = ProcessState(process_id=os.getpid(), mark=start_mark(os.getpid()))
        write_state(
            StackState(
                name="dev", phase=Phase.RUNNING, owner_id=os.getpid(), addresses=addresses, processes={part: here}
            )
        )
        monkeypatch.setattr(sys, "argv", ["evenkeel", "-o", "json", "stack", "status"])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code == ExitStatus.UNHEALTHY
        assert [row["state"] for row in json.loads(shown.out) if row["part"] == part] == ["unhealthy"]
        return shown.out + shown.err

    return said


def test_a_service_that_is_not_well_says_what_it_misses(
    port: int, body: str, said_of: Callable[[str, Addresses], str]
) -> None:
    said = said_of("detector", Addresses(kafka_bootstrap_servers="k:1", metrics_ports={"detector": port}))
    why = "postgres: history: TimeoutError: no answer in time" if body.startswith("{") else "/healthz answers 503"
    assert f"dev detector: {why}" in said


def test_a_postgresql_that_takes_connections_and_answers_none_is_not_well(
    tmp_path: Path, said_of: Callable[[str, Addresses], str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"postgresql://user:secret@127.0.0.1:{frozen.getsockname()[1]}/history"
        said = said_of("postgres", Addresses(database_url=url))
    log = tmp_path / ".stack" / "dev" / "postgres" / "postgres.log"
    assert f"dev postgres: does not answer, or lets nobody in; its log is {log}" in said
    assert "secret" not in said
