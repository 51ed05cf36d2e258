"""The examples as their README says: a torchrun for each replica, one of whose ranks is killed."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.integration.replicas.torchruns import STEPS, Torchruns, train_alone

pytestmark = pytest.mark.integration


def test_a_killed_rank_is_started_again_and_joins(start_torchruns: Callable[..., Torchruns]) -> None:
    script, num_replicas, per_replica = "replicas/ddp.py", 3, 1
    wanted = train_alone(script)
    runs = start_torchruns(script, num_replicas, per_replica)
    runs.until(lambda: any(step == 20 for _, step, _ in runs.lines))
    os.kill(runs.ranks_of(1)[-1], signal.SIGKILL)
    for each in runs.processes:
        assert each.wait(200) == 0, "".join(runs.output[-40:])
    runs.until(lambda: {replica for replica, step, _ in runs.lines if step == STEPS} >= {0})
    for _, step, loss in runs.lines:
        assert float(loss) == pytest.approx(wanted[step], rel=1e-5)
    assert [step for replica, step, _ in runs.lines if replica == 0] == [20, 40, 60]
