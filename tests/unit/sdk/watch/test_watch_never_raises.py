"""Whatever is watched, and whatever goes wrong in the watch, the loop trains on."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from evenkeel.telemetry.v2 import batch_pb2
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.iteration import Iteration
from evenkeel.trainer_sdk.emit.progress import Reached
from evenkeel.trainer_sdk.watch import guard
from evenkeel.trainer_sdk.watch.run import Run


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_said", set())


class NeverMade(Optimizer):
    """A wrapper as libraries write it: an Optimizer by its class alone."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


def accelerated(optimizer: Optimizer) -> Any:
    accelerate = pytest.importorskip("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(optimizer)


def of_pieces(optimizer: Optimizer) -> Any:
    """Something that steps and is no optimizer, nor has one."""
    return SimpleNamespace(step=optimizer.step)


def train(run: Run, model: Any, optimizer: Any, num_iterations: int = 3) -> list[Iteration]:
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    for _ in range(num_iterations):
        with run.iteration(tokens=4):
            model(torch.ones(4, 8)).square().sum().backward()
            optimizer.step()
    return finished


@pytest.mark.parametrize(
    ("tokens", "reported"),
    [
        (4, 4),
        (torch.tensor(4.0), 4),
        (4.6, 5),
        (None, 0),
        (-1, 0),
        (float("nan"), 0),
        ("many", 0),
        (1 << 80, 0),
        (torch.ones(2), 0),
    ],
)
def test_a_number_of_tokens_that_cannot_be_costs_no_other_sample(
    tokens: Any, reported: int, caplog: pytest.LogCaptureFixture
) -> None:
    run, finished = Run(emitter=Emitter()), list[Iteration]()
    run._finished = finished.append  # type: ignore[method-assign]
    for _ in range(2):
        with run.iteration(tokens=tokens, sum_of_squares=tokens):
            pass
    measured = [each.measured() for each in finished]
    built = BatchBuilder(Source(job_id="j", rank=0)).build(measured=measured, events=[], progress=None)
    assert [batch_pb2.Batch.FromString(each.SerializeToString()).tokens[:] for each in built] == [[reported] * 2]
    assert len(caplog.records) == (0 if reported else 2)


def test_tokens_count_as_they_are_on_leaving_whatever_the_loop_does_to_their_tensor() -> None:
    run, finished, tokens = Run(emitter=Emitter()), list[Iteration](), torch.zeros(())
    run._finished = finished.append  # type: ignore[method-assign]
    for added in (100, 200):
        tokens.zero_()
        with run.iteration(tokens=tokens) as iteration:
            tokens += added
            iteration.num_micro_batches = torch.tensor(2.0)
    tokens.zero_()
    assert [(each.measured().tokens, each.measured().num_micro_batches) for each in finished] == [(100, 2), (200, 2)]


@pytest.mark.parametrize("index", ["three", -5, float("inf"), object()])
def test_an_index_that_is_none_is_said_once_and_not_used(index: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(emitter=Emitter())
    assert [run.iteration(tokens=4, index=each).index for each in (7, 8.0, index, index)] == [7, 8, 9, 10]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("wrap", "is_measured"),
    [
        (lambda optimizer: optimizer, True),
        (NeverMade, True),
        (lambda optimizer: NeverMade(NeverMade(optimizer)), True),
        (accelerated, True),
        (of_pieces, False),
    ],
)
def test_an_optimizer_is_measured_through_its_wrappers_or_named_as_not_measured(
    wrap: Callable[[Optimizer], Any], is_measured: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(8, 8)
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    run = Run(emitter=Emitter())
    run.watch(model, optimizer)
    run.watch(model, optimizer)
    before = model.weight.detach().clone()
    measured = [iteration.measured() for iteration in train(run, model, optimizer)]
    assert not torch.equal(before, model.weight)
    assert all(each.forward_seconds > 0 and each.backward_seconds > 0 for each in measured)
    assert all((each.optimizer_seconds > 0) == is_measured for each in measured)
    said = [record.getMessage() for record in caplog.records if record.name == "evenkeel"]
    assert [each.partition("is no torch optimizer")[1] != "" for each in said] == [True] * (not is_measured)


@pytest.mark.parametrize("model", [None, lambda x: x, [nn.Linear(1, 1)]])
def test_what_is_no_model_is_said_once(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(emitter=Emitter())
    run.watch(model)
    run.watch(model)
    assert run.num_errors == 2
    assert len(caplog.records) == 1


class BrokenDevice(CpuDevice):
    """A device whose driver answers no more."""

    def end(self, flops: float, kind: ComputeKind) -> float:
        raise RuntimeError("the driver is gone")


class BrokenProgress:
    """Where a rank is cannot be written."""

    where = (0, 0)

    def begin_iteration(self, iteration: int, epoch: int) -> None: ...

    @property
    def newest(self) -> Reached:
        raise NotImplementedError

    @newest.setter
    def newest(self, reached: Reached) -> None:
        if reached[0] != "iteration":
            raise OSError("no")


@pytest.mark.parametrize("broken", ["device", "progress"])
def test_a_watch_that_breaks_counts_says_it_once_a_kind_and_lets_train(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    emitter = Emitter()
    if broken == "progress":
        emitter.progress = BrokenProgress()  # type: ignore[assignment]
    run = Run(emitter=emitter, device=BrokenDevice() if broken == "device" else None)
    model = nn.Linear(8, 8)
    optimizer = SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    train(run, model, optimizer, num_iterations=5)
    assert run.num_errors >= 10
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said)) <= 4


def test_an_error_of_the_loop_itself_is_the_loops() -> None:
    run = Run(emitter=Emitter(), device=BrokenDevice())
    with pytest.raises(ZeroDivisionError), run.iteration(tokens=1) as iteration, iteration.compute("forward"):
        _ = 1 / 0
