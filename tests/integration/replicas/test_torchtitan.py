"""The Trainer of torchtitan as two replicas, each under a torchrun of its own: the same loss, though one dies."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.replicas.torchruns import DEADLINE_SECONDS, ROOT, Torchruns, train_alone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

LAYER = ROOT / ".cache" / "torchtitan"
"""What torchtitan needs beside the lock, older versions of what is in it among that: no other process has it."""
SCRIPT = ROOT / "examples" / "trainers" / "on_torchtitan.py"
NUM_STEPS = 14
FATAL_STEP = 4
ROWS_OF_A_STEP = 24
"""Their first tokens tell them apart."""
PROGRAM = f"""
import os, runpy, signal, sys

sys.path.insert(0, {str(LAYER)!r})
replica, life = os.environ.get("EVENKEEL_REPLICA", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
example = runpy.run_path({str(SCRIPT)!r})
import torchtitan.trainer

share = torchtitan.trainer.Trainer.forward_backward_step
rows = []

def noted(trainer, *, input_dict, **options):
    loss = share(trainer, input_dict=input_dict, **options)
    rows.extend(input_dict["input"][:, 0].tolist())
    if (replica, life, trainer.step) == ("1", "0", {FATAL_STEP}):
        os.kill(os.getpid(), signal.SIGKILL)
    return loss

def train_step(trainer, batches):
    print(f"replica {{replica}}: life {{life}} comes to step {{trainer.step}}", flush=True)
    own_step(trainer, batches)
    print(f"replica {{replica}}: rows of step {{trainer.step}}: {{' '.join(map(str, rows))}}", flush=True)
    rows.clear()

torchtitan.trainer.Trainer.forward_backward_step = noted
own_step, example["Trainer"].train_step = example["Trainer"].train_step, train_step
example["main"]()
"""
"""The example, which says whose rows it ran in steps that it finished; a replica is killed after half of its share."""


def rows_by_step(output: list[str]) -> dict[int, list[int]]:
    """First tokens of the rows that all replicas ran, in order."""
    rows: dict[int, list[int]] = {step: [] for step in range(1, NUM_STEPS + 1)}
    for step, ran in re.findall(r"rows of step (\d+): ([\d ]*)\n", "".join(output)):
        rows[int(step)] += map(int, ran.split())
    return {step: sorted(ran) for step, ran in rows.items()}


def test_one_of_two_replicas_is_killed_amid_a_step_and_comes_back_to_the_step_where_the_other_is(
    start_torchruns: Callable[..., Torchruns], tmp_path: Path
) -> None:
    if not (LAYER / "torchtitan").is_dir():
        pytest.skip("torchtitan is not installed: make .cache/torchtitan/.evenkeel-setup")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    wanted = train_alone(str(program), num_steps=NUM_STEPS)
    assert list(wanted) == list(range(1, NUM_STEPS + 1))
    runs = start_torchruns(str(program), 2, 1, num_steps=NUM_STEPS)
    runs.until(lambda: any(step > FATAL_STEP for _, step, _ in runs.lines))
    survivor = runs.ranks_of(0)[-1]
    os.kill(survivor, signal.SIGSTOP)  # else it may be done before the other has loaded torchtitan again
    runs.until(lambda: "replica 1: life 1 comes to step 1\n" in runs.output)
    os.kill(survivor, signal.SIGCONT)
    for each in runs.processes:
        assert each.wait(DEADLINE_SECONDS) == 0, "".join(runs.output[-40:])
    runs.join()
    for replica, step, loss in runs.lines:
        assert float(loss) == pytest.approx(wanted[step], rel=1e-5), f"replica {replica}, step {step}"
    steps = {each: [step for replica, step, _ in runs.lines if replica == each] for each in (0, 1)}
    assert steps[0] == list(range(1, NUM_STEPS + 1))
    assert len(steps[1]) >= FATAL_STEP, "".join(runs.output[-40:])
    returned = steps[1][FATAL_STEP - 1]
    assert returned > FATAL_STEP
    assert steps[1] == [*range(1, FATAL_STEP), *range(returned, NUM_STEPS + 1)]
    assert rows_by_step(runs.output) == {
        step: sorted((ROWS_OF_A_STEP * (step - 1) + row) % 61 for row in range(ROWS_OF_A_STEP)) for step in wanted
    }
