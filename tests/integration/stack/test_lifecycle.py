"""Whatever ends the owner of a stack, nothing of the stack is left; what dies under a supervisor comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenkeel.stack.processes.pids import is_alive
from evenkeel.stack.processes.ports import free_ports
from evenkeel.stack.processes.supervisor import Supervisor
from evenkeel.stack.processes.watchdog import Watchdog
from evenkeel.stack.services import ServiceProcess, is_healthy

pytestmark = pytest.mark.integration

# A service as the stack sees it: a process that answers /healthz.
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
OWNER = """
import signal, sys
from pathlib import Path
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog
watchdog = Watchdog()
watchdog.start()
for number in range(2):
    child = ManagedProcess(name="child", command=["sleep", "600"], log_path=Path(sys.argv[1]), watchdog=watchdog)
    child.start()
    print(child.process_id, flush=True)
signal.pause()
"""


def wait_for(condition: Callable[[], bool], *, timeout_seconds: float = 200.0) -> float:
    """Blocks until the condition holds; returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_seconds, "the condition did not come true in time"
        time.sleep(0.01)
    return time.monotonic() - started


def http_service(name: str, port: int) -> ServiceProcess:
    command = (sys.executable, "-I", "-c", SERVER, str(port))
    return ServiceProcess(name=name, command=command, environment={}, metrics_port=port)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    watchdog = Watchdog()
    watchdog.start()
    services = [http_service(f"service-{port}", port) for port in free_ports(2)]
    running = Supervisor(services, log_folder=tmp_path, watchdog=watchdog)
    running.start()
    yield running
    running.stop()
    watchdog.stop()


def test_a_service_that_was_killed_is_started_again_and_counted(supervisor: Supervisor) -> None:
    name, process_id = next(iter(supervisor.process_ids.items()))
    os.kill(process_id, signal.SIGKILL)
    wait_for(lambda: supervisor.process_ids[name] != process_id)
    assert supervisor.restarts[name] == 1
    port = int(name.removeprefix("service-"))
    wait_for(lambda: is_healthy(port))


def test_after_stop_no_service_runs_and_none_is_started_again(supervisor: Supervisor) -> None:
    process_ids = list(supervisor.process_ids.values())
    supervisor.stop()
    assert not any(is_alive(process_id) for process_id in process_ids)
    assert list(supervisor.process_ids.values()) == process_ids


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_owner_however_it_ends(ending: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        assert owner.stdout is not None
        children = [int(owner.stdout.readline()) for _ in range(2)]
        assert all(is_alive(child) for child in children)
        owner.send_signal(ending)
        owner.wait()
        wait_for(lambda: not any(is_alive(child) for child in children))
