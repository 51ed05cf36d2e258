"""Ports are looked up before services bind them: one that is taken meanwhile costs another try and nothing else."""

import socket

import pytest

from evenkeel.stack import stack as module
from evenkeel.stack.processes.ports import LOOPBACK, free_ports
from evenkeel.stack.services import is_healthy
from evenkeel.stack.stack import Stack

pytestmark = pytest.mark.integration


def test_a_port_that_is_taken_before_the_service_binds_it_is_replaced_by_another(
    on_running_servers: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((LOOPBACK, 0)) as somebody:
        taken = somebody.getsockname()[1]
        found = [[free_ports(1)[0], taken]]
        monkeypatch.setattr(module, "free_ports", lambda count: found.pop() if found else free_ports(count))
        on_running_servers.start()
    assert not found
    port = on_running_servers.addresses.metrics_ports["telemetry"]
    assert port != taken
    assert is_healthy(port)
