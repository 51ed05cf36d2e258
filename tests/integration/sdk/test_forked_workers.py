"""DataLoader workers are forked while the rank controller is being called: they must survive it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def test_forked_data_loader_workers_survive_a_busy_rank_controller() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.integration.sdk.busy_trainer"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
