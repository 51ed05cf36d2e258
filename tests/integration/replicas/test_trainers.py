"""Trainers of other libraries as replicas, beside themselves as they come: the same loss, whoever dies."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.integration.replicas.torchruns import DEADLINE_SECONDS, LAST_PLACE, STEPS, Torchruns, train_alone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

STOCK = {
    "hf": "import transformers, evenkeel.hf; evenkeel.hf.Trainer = transformers.Trainer",
    "lightning": (
        "import evenkeel.lightning; from lightning.pytorch.strategies import SingleDeviceStrategy; "
        "evenkeel.lightning.EvenkeelStrategy = type('Stock', (SingleDeviceStrategy,), {'has_model': True})"
    ),
}
"""What makes the library's own of an example's import."""


@pytest.fixture(scope="module", params=list(STOCK))
def library(request: pytest.FixtureRequest) -> str:
    package = {"hf": "transformers", "lightning": "lightning"}[request.param]
    pytest.importorskip(package)
    return str(request.param)


@pytest.fixture(scope="module")
def stock_losses(library: str) -> dict[int, float]:
    losses = train_alone(
        f"trainers/on_{library}.py",
        "-c",
        f"import runpy, sys; {STOCK[library]}; runpy.run_path(sys.argv[1], run_name='__main__')",
    )
    assert list(losses) == list(range(1, STEPS + 1))
    return losses


@pytest.mark.parametrize("dies", [False, True])
def test_replicas_train_like_the_librarys_own_trainer(
    start_torchruns: Callable[..., Torchruns], library: str, stock_losses: dict[int, float], dies: bool
) -> None:
    runs = start_torchruns(f"trainers/on_{library}.py", 2, 1)
    if dies:
        runs.until(lambda: any(step == 15 for _, step, _ in runs.lines))
        os.kill(runs.ranks_of(1)[-1], signal.SIGKILL)
        runs.until(lambda: any(replica == 0 and step == 20 for replica, step, _ in runs.lines))
        survivor = runs.ranks_of(0)[-1]
        os.kill(survivor, signal.SIGSTOP)  # else it may be done before the other has loaded its library again
        runs.until(lambda: runs.output.count("replica 1: begins\n") >= 2)
        os.kill(survivor, signal.SIGCONT)
    for each in runs.processes:
        assert each.wait(DEADLINE_SECONDS) == 0, "".join(runs.output[-40:])
    runs.until(lambda: {replica for replica, step, _ in runs.lines if step == STEPS} == {0, 1})
    for replica, step, loss in runs.lines:
        assert float(loss) == pytest.approx(stock_losses[step], rel=1e-5, abs=LAST_PLACE), (
            f"replica {replica}, step {step}"
        )
    steps = {each: [step for replica, step, _ in runs.lines if replica == each] for each in (0, 1)}
    assert steps[0] == list(range(1, STEPS + 1))
    # Whoever was away has steps that it heard nothing of, and none twice.
    assert steps[1] == sorted(set(steps[1]))
    assert steps[1][-1] == STEPS
    assert (len(steps[1]) < STEPS) == dies
