"""Trainers of other libraries as replicas, beside themselves as they come: the same loss, though one dies."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from evenkeel.trainer_sdk.api import stop
from evenkeel.trainer_sdk.watch.run import Run
from tests.integration.replicas.torchruns import DEADLINE_SECONDS, LAST_PLACE, ROOT, STEPS, Output, children_of
from tests.warm import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

STOCK = {
    "hf": "import transformers, evenkeel.hf; evenkeel.hf.Trainer = transformers.Trainer",
    "lightning": (
        "import evenkeel.lightning; from lightning.pytorch.strategies import SingleDeviceStrategy; "
        "evenkeel.lightning.EvenkeelStrategy = type('Stock', (SingleDeviceStrategy,), {'has_model': True})"
    ),
}
"""What makes the library's own of an example's import."""
ALONE_IS_DONE = "alone: done\n"
PROGRAM = f"""
import os, runpy, sys

script, stock = sys.argv[1:]
runpy.run_path(script)
if (pid := os.fork()) == 0:
    os.environ["PAUSE"] = "0"
    exec(stock)
    runpy.run_path(script, run_name="__main__")
    raise SystemExit
assert os.waitpid(pid, 0)[1] == 0
print({ALONE_IS_DONE!r}, end="", flush=True)
from evenkeel.trainer_sdk.launcher.agent.__main__ import main
os._exit(main(["--nproc-per-node", "2", script]))
"""
"""Runs an example with the library's own trainer, then as two replicas: what takes seconds to load is loaded once."""


class Trained(Output):
    """An example as it comes, and ``evenkeel launch`` of it."""

    def __init__(self, library: str, program: Path) -> None:
        super().__init__()
        program.write_text(PROGRAM)
        script = ROOT / "examples" / "trainers" / f"on_{library}.py"
        self.launcher = WarmProgram(
            [sys.executable, program, script, STOCK[library]],
            # Buffered: two processes write their lines to one pipe, each in one piece.
            env={**os.environ, "STEPS": str(STEPS), "PAUSE": "0.1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.read(self.launcher.stdout)

    def alone(self) -> dict[int, float]:
        """Waits for the library's own losses, by step; what is said from then on is the replicas'."""
        self.until(lambda: ALONE_IS_DONE in self.output)
        said = "".join(self.output[: self.output.index(ALONE_IS_DONE)])
        losses = {int(step): float(loss) for step, loss in re.findall(r"step (\d+), loss ([\d.]+)", said)}
        del self.lines[: len(losses)]
        return losses

    def begun(self, replica: int) -> int:
        """How many processes of a replica have begun to train."""
        said = self.output[self.output.index(ALONE_IS_DONE) :]
        return sum(line.endswith(f"replica {replica}: begins\n") for line in said)

    def close(self) -> None:
        self.launcher.terminate()
        self.launcher.wait(60)
        self.join()


@pytest.fixture(params=list(STOCK))
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trained]:
    package = {"hf": "transformers", "lightning": "lightning"}[request.param]
    pytest.importorskip(package)
    trained = Trained(request.param, tmp_path / "program.py")
    yield trained
    trained.close()


def test_replicas_of_which_one_dies_train_like_the_librarys_own_trainer(trained: Trained) -> None:
    stock_losses = trained.alone()
    assert list(stock_losses) == list(range(1, STEPS + 1))
    trained.until(lambda: any(replica == 1 and step == 15 for replica, step, _ in trained.lines))
    survivor, victim = children_of(trained.launcher.pid)[-2:]
    os.kill(victim, signal.SIGKILL)
    trained.until(lambda: any(replica == 0 and step == 20 for replica, step, _ in trained.lines))
    os.kill(survivor, signal.SIGSTOP)  # else it may be done before the other is there again
    trained.until(lambda: trained.begun(1) == 2)
    os.kill(survivor, signal.SIGCONT)
    assert trained.launcher.wait(DEADLINE_SECONDS) == 0, "".join(trained.output[-40:])
    trained.join()
    for replica, step, loss in trained.lines:
        assert float(loss) == pytest.approx(stock_losses[step], rel=1e-5, abs=LAST_PLACE), (
            f"replica {replica}, step {step}"
        )
    steps = {each: [step for replica, step, _ in trained.lines if replica == each] for each in (0, 1)}
    assert steps[0] == list(range(1, STEPS + 1))
    # Whoever was away has steps that it heard nothing of, and none twice.
    assert steps[1] == sorted(set(steps[1]))
    assert steps[1][:15] == steps[0][:15]
    assert steps[1][-1] == STEPS, "".join(trained.output[-40:])
    assert len(steps[1]) < STEPS


def test_accelerate_wraps_no_replica_that_is_alone_in_its_world_in_mixed_precision_either(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    program = tmp_path / "program.py"
    program.write_text(
        "import functools, runpy, transformers\n"
        "transformers.TrainingArguments = functools.partial(transformers.TrainingArguments, bf16=True)\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'trainers' / 'on_hf.py')!r}, run_name='__main__')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **world, "STEPS": "1"}
    run = WarmProgram([sys.executable, program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with run.stdout as output:
        said = output.read()
    assert run.wait() == 0, said
    assert "replica 0: step 1, loss" in said


@pytest.mark.filterwarnings("ignore")
def test_averages_of_lightnings_callbacks_are_kept_and_a_newcomer_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lightning = pytest.importorskip("lightning")
    from evenkeel.lightning import EvenkeelStrategy  # noqa: PLC0415 - needs lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    kept: list[object] = []
    monkeypatch.setattr(Run, "keep", lambda _, *each: kept.extend(each))
    strategy = EvenkeelStrategy("cpu")
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_steps=1,
        callbacks=[lightning.pytorch.callbacks.EMAWeightAveraging()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    try:
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(2, 4)))
    finally:
        stop()
    assert [type(each) for each in kept] == [AveragedModel]
    assert strategy.reduce_boolean_decision(True)
    monkeypatch.setattr(EvenkeelStrategy, "has_model", False)
    assert not strategy.reduce_boolean_decision(True)
