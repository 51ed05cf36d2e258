"""A plain loop joins in at most five lines, and nothing it can meet stops it."""

import ast
import inspect
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

import evenkeel
from evenkeel.trainer_sdk.emit.iteration import Iteration
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.watch import guard

JOB_ID = f"job-{os.getpid()}"  # no two live processes of a machine are the same rank of a job: other tests run beside
JOB = {"EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "EVENKEEL_JOB_ID": JOB_ID}
FLEET = {
    "EVENKEEL_FLEET_ADDRESS": "127.0.0.1:1",
    "EVENKEEL_JOB_ID": JOB_ID,
    "EVENKEEL_JOB_TOKEN": "token",
    "RANK": "0",
}


@pytest.fixture(autouse=True)
def _one_run_per_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "EVENKEEL_FLEET_ADDRESS", "EVENKEEL_JOB_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(guard, "_said", set())
    evenkeel.stop()
    yield
    evenkeel.stop()


def plain_loop(batches: list[list[float]]) -> list[float]:
    losses = []
    for batch in batches:
        loss = sum(batch) / len(batch)
        losses.append(loss)
    return losses


def watched_loop(batches: list[list[float]]) -> list[float]:
    run = evenkeel.start()
    losses = []
    for batch in batches:
        with run.iteration(tokens=len(batch)) as iteration:
            loss = sum(batch) / len(batch)
            iteration.loss = loss
        losses.append(loss)
    return losses


def num_statements(function: object) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(inspect.getsource(function))))  # type: ignore[arg-type]


def test_a_plain_loop_gains_at_most_five_lines_and_keeps_its_result() -> None:
    import_line = 1
    assert num_statements(watched_loop) - num_statements(plain_loop) + import_line <= 5
    batches = [[1.0, 2.0], [3.0, 5.0]]
    assert watched_loop(batches) == plain_loop(batches)


def test_without_addresses_nothing_runs_in_the_background() -> None:
    run = evenkeel.start()
    assert run is evenkeel.start()
    assert type(run._emitter).__name__ == "Emitter"
    assert not run.asked_to_leave


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, "EVENKEEL_JOB_ID"),
        ({**JOB, "RANK": "x"}, "RANK is 'x', not a number"),
        (JOB, "call start() after init_process_group(), or set RANK"),
        ({**JOB, "RANK": "4", "WORLD_SIZE": "4"}, "rank 4 of 4 ranks"),
        ({**JOB, "RANK": "0", "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "kafka:port"}, "'kafka:port', not host:port"),
        ({"EVENKEEL_FLEET_ADDRESS": "127.0.0.1:1", "EVENKEEL_JOB_ID": JOB_ID, "RANK": "0"}, "EVENKEEL_JOB_TOKEN"),
        ({**FLEET, "EVENKEEL_FLEET_ADDRESS": "fleet"}, "EVENKEEL_FLEET_ADDRESS is 'fleet', not host:port"),
        ({**FLEET, "EVENKEEL_FLEET_CA_FILE": "/no/such.pem"}, "EVENKEEL_FLEET_CA_FILE"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line_and_the_loop_goes_on(
    environment: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evenkeel"):
        run = evenkeel.start(environment=environment)
    assert [named in record.getMessage() for record in caplog.records] == [True]
    with run.iteration(tokens=1):
        pass


def test_a_loop_that_sets_up_no_logging_sees_what_is_wrong_on_standard_error() -> None:
    environment = {**os.environ, "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    loop = "import evenkeel; evenkeel.start()"
    done = subprocess.run([sys.executable, "-c", loop], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == "EVENKEEL_JOB_ID is not set: this process is not watched\n"


def test_an_iteration_knows_what_was_measured_of_it() -> None:
    run = evenkeel.start()
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    with run.iteration(tokens=512, sum_of_squares=9000.0, index=7, mark="checkpoint") as iteration:
        with iteration.compute("forward"):
            pass
        with iteration.compute("optimizer"):
            pass
        iteration.loss = 2.5
    measured = finished[0].measured()
    assert (measured.iteration, number(measured.loss, "loss"), measured.mark) == (7, 2.5, 2)
    assert (measured.tokens, measured.sum_of_squares) == (512, 9000.0)
    assert 0 < measured.forward_seconds < measured.wall_seconds
    assert (measured.backward_seconds, measured.input_seconds, measured.gradient_norm) == (0.0, None, None)
    assert measured.peak_memory_bytes > 1 << 20
    with run.iteration(tokens=1) as following:
        assert following.index == 8


def test_an_iteration_that_raises_is_not_reported_and_its_error_is_not_hidden() -> None:
    run = evenkeel.start()
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError), run.iteration(tokens=1):
        _ = 1 / 0
    assert finished == []


def test_a_tensor_loss_keeps_no_graph_alive() -> None:
    import torch  # noqa: PLC0415

    run = evenkeel.start()
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    weight = torch.ones(3, requires_grad=True)
    with run.iteration(tokens=3) as iteration:
        doubled = weight * 2
        iteration.loss, saved = (doubled * doubled).mean() / 2, weakref.ref(doubled)
        del doubled
    assert saved() is None
    assert number(finished[0].measured().loss, "loss") == 2.0


def test_a_loss_that_is_summed_up_in_place_is_that_of_its_own_iteration() -> None:
    import torch  # noqa: PLC0415

    run = evenkeel.start()
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    total = torch.zeros(())
    for index in range(2):
        total.zero_()
        with run.iteration(tokens=3) as iteration:
            for _ in range(4):  # micro-batches
                total += 1.0 + index
            iteration.loss = iteration.gradient_norm = total
    read = [each.measured() for each in finished]
    # as late as the background thread may be
    assert [(number(each.loss, "loss"), number(each.gradient_norm, "gradient_norm")) for each in read] == [
        (4.0, 4.0),
        (8.0, 8.0),
    ]


def test_what_is_no_number_is_left_out_of_the_sample_and_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: PLC0415

    run = evenkeel.start()
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    for loss in (torch.ones(2), "2.5 nats", torch.tensor(2.5)):
        with run.iteration(tokens=3) as iteration:
            iteration.loss = loss
    assert [number(each.measured().loss, "loss") for each in finished] == [None, None, 2.5]
    assert caplog.text.count("not one number") == 1


def test_of_a_distributed_norm_only_what_is_whole_here_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, init_device_mesh  # noqa: PLC0415

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        run = evenkeel.start()
        finished: list[Iteration] = []
        run._finished = finished.append  # type: ignore[method-assign]
        placements: list[Placement] = [Replicate(), Partial(), Partial()]
        for placement in placements:
            with run.iteration(tokens=3) as iteration:
                iteration.gradient_norm = DTensor.from_local(torch.tensor(3.0), mesh, [placement])
    finally:
        distributed.destroy_process_group()
    assert [number(each.measured().gradient_norm, "gradient_norm") for each in finished] == [3.0, None, None]
    assert caplog.text.count("full_tensor()") == 1


def test_unknown_marks_and_kinds_are_said_once_and_end_no_training(caplog: pytest.LogCaptureFixture) -> None:
    run = evenkeel.start()
    for _ in range(2):
        with run.iteration(tokens=1, mark="party") as iteration, iteration.compute("sideways"):
            pass
        with run.pause("party"):
            pass
    assert iteration.measured().mark == 0
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "mark 'party' is not known and ignored",
        "compute kind 'sideways' is not measured",
    ]


def test_a_pause_is_the_operation_that_the_fleet_sees() -> None:
    run = evenkeel.start()
    progress = run._emitter.progress
    with run.pause("checkpoint"):
        assert progress.read().operation == "checkpoint"
    assert progress.read().operation == "between iterations"
