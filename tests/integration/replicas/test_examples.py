"""The examples as their README says: a torchrun for each replica, any of which is killed, store and all."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.integration.replicas.torchruns import DEADLINE_SECONDS, LAST_PLACE, Torchruns, train_alone

# Enough for those that are started again to come in before the other has finished; it waits while they load torch.
NUM_STEPS = 90

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def test_a_rank_is_killed_and_then_a_replica_with_its_torchrun_and_store(
    start_torchruns: Callable[..., Torchruns],
) -> None:
    wanted = train_alone("replicas/ddp.py", num_steps=NUM_STEPS)
    runs = start_torchruns("replicas/ddp.py", 3, 1, num_steps=NUM_STEPS)
    runs.until(lambda: any(step == 10 for _, step, _ in runs.lines))
    os.kill(runs.ranks_of(1)[-1], signal.SIGKILL)
    runs.until(lambda: any(step == 20 for _, step, _ in runs.lines))
    assert "replica 1 is gone: its process ended\n" in runs.output
    runs.kill(0)
    runs.start_again(0)
    runs.until(lambda: any(replica == 2 and step == 30 for replica, step, _ in runs.lines))
    survivor = runs.ranks_of(2)[-1]
    os.kill(survivor, signal.SIGSTOP)  # else it may be done before the others have loaded torch again
    runs.until(lambda: all(runs.output.count(f"replica {each}: begins\n") >= 2 for each in (0, 1)))
    os.kill(survivor, signal.SIGCONT)
    for each in runs.processes:
        assert each.wait(DEADLINE_SECONDS) == 0, "".join(runs.output[-40:])
    runs.until(lambda: {replica for replica, step, _ in runs.lines if step == NUM_STEPS} == {0, 1, 2})
    for _, step, loss in runs.lines:
        assert float(loss) == pytest.approx(wanted[step], rel=1e-5, abs=LAST_PLACE)
    assert [step for replica, step, _ in runs.lines if replica == 2] == list(range(10, NUM_STEPS + 1, 10))
