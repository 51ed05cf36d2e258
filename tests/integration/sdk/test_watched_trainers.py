"""The trainers of other libraries under DDP, watched by a callback of ours: they learn the same, and are measured."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from evenkeel.telemetry.v2 import batch_pb2 as pb
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.iteration import Iteration
from evenkeel.trainer_sdk.trainers.watched_steps import WatchedSteps
from evenkeel.trainer_sdk.watch.run import Run
from tests.warm import WarmProgram

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "entry_points" / "watched_trainers.py"
PATIENCE_SECONDS = 120.0
SLOW_RANK, SLOW_SECONDS, NUM_STEPS, PER_STEP = 1, 0.15, 3, 2


@pytest.fixture(scope="module", params=["transformers", "lightning"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
    }
    with (folder / "log").open("wb") as log:
        command = [sys.executable, PROGRAM, folder, request.param]
        program = WarmProgram(command, env={**os.environ, **world}, stdout=log, stderr=log, start_new_session=True)
    try:
        assert program.wait(PATIENCE_SECONDS) == 0, (folder / "log").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_it_learns_what_it_learns_unwatched(said: list[dict[str, Any]]) -> None:
    for rank in said:
        assert rank["watched"] == rank["plain"]
        assert rank["num_errors"] == 0


def test_an_iteration_is_a_step_with_all_its_micro_batches(said: list[dict[str, Any]]) -> None:
    for rank in said:
        iterations = rank["iterations"]
        assert [each["index"] for each in iterations] == list(range(NUM_STEPS))
        assert [(each["tokens"], each["micro_batches"]) for each in iterations] == [
            (5 * PER_STEP, PER_STEP)
        ] * NUM_STEPS
        assert all(0 < each["loss"] < 10 for each in iterations)


def test_a_step_into_which_an_evaluation_falls_is_marked_and_no_other(said: list[dict[str, Any]]) -> None:
    for rank in said:
        marks = [each["mark"] for each in rank["iterations"]]
        in_second = pb.MARK_EVALUATION if rank["library"] == "lightning" else pb.MARK_UNSPECIFIED
        assert marks == [pb.MARK_UNSPECIFIED, in_second, pb.MARK_UNSPECIFIED]


def test_only_the_slow_rank_computes_longer_and_the_other_one_waits(said: list[dict[str, Any]]) -> None:
    slow, other = (said[rank]["iterations"] for rank in (SLOW_RANK, 1 - SLOW_RANK))
    assert min(each["forward"] for each in slow) >= PER_STEP * SLOW_SECONDS
    assert min(each["input"] for each in slow) >= PER_STEP * SLOW_SECONDS
    assert max(each["waiting"] / each["wall"] for each in other) > 0.7
    assert min((each["forward"] + each["backward"] + each["input"]) / each["wall"] for each in other) < 0.5
    for each in (*slow, *other):
        assert each["backward"] > 0


def test_evenkeels_own_trainer_is_not_watched_twice(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from evenkeel.hf import Trainer, Watch  # noqa: PLC0415 - transformers may not be there

    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="leave Watch out"):
        Watch(Trainer(model=nn.Linear(1, 1), args=arguments))


def test_training_that_begins_anew_after_an_error_begins_with_a_new_step() -> None:
    finished: list[Iteration] = []
    run = Run(emitter=Emitter())
    run._finished = finished.append  # type: ignore[method-assign]
    steps = WatchedSteps(run)
    steps.begin(7)
    steps.take(torch.zeros(5))
    steps.start()
    steps.begin(0)
    steps.take(torch.zeros(3))
    steps.end()
    assert [(each.index, each.tokens, each.num_micro_batches) for each in finished] == [(0, 3, 1)]


def test_a_pause_between_two_steps_lasts_until_the_next_one_begins() -> None:
    emitter = Emitter()
    steps = WatchedSteps(Run(emitter=emitter))
    steps.pause("checkpoint")
    assert emitter.progress.read().operation == "checkpoint"
    steps.begin(0)
    assert emitter.progress.read().operation == "iteration"
