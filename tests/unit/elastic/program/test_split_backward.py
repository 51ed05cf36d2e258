"""A backward in two parts against the one in one part: same gradients and operations, nothing counted early."""

from dataclasses import replace

import pytest
import torch

from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.model import backward_flops, parameter_specs
from evenkeel.trainer_sdk.elastic.model.reference import reference_runtime, single_layout
from evenkeel.trainer_sdk.elastic.model.stage_model import StageModel
from evenkeel.trainer_sdk.elastic.model.tensor_parallel import TensorRegion
from evenkeel.trainer_sdk.elastic.model.weight_tape import WeightTape
from evenkeel.trainer_sdk.elastic.model.weights import Weights
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.ownership import Slice
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class CountingDevice(CpuDevice):
    """Adds up the operations that it is told of, segment by segment."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: list[tuple[ComputeKind, float]] = []

    def end(self, flops: float, kind: ComputeKind) -> float:
        self.segments.append((kind, flops))
        return super().end(flops, kind)

    def total(self, kind: ComputeKind) -> float:
        return sum(flops for each, flops in self.segments if each is kind)


def runtime_of(config: TrainingConfig, schedule: str) -> tuple[EpochRuntime, CountingDevice]:
    device = CountingDevice()
    layout = replace(single_layout(config), schedule=schedule)
    phases = Phases(device, ProgressMark())
    state = initial_state(config, layout, 0)
    return EpochRuntime(config, Dataset(config), 0, state, {}, phases), device


def test_both_parts_together_give_the_gradients_of_the_whole(small_config: TrainingConfig) -> None:
    whole, split = reference_runtime(small_config), runtime_of(small_config, "zb-h1")[0]
    assert split.run_iteration(0) == pytest.approx(whole.run_iteration(0), rel=1e-15)
    found, expected = split.sums.gradients(), whole.sums.gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float(gradient.abs().max()) > 0.0, f"{name} has no gradient to compare"
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-16, msg=name)


def test_ten_iterations_lose_nothing_against_the_whole(small_config: TrainingConfig) -> None:
    whole, split = reference_runtime(small_config), runtime_of(small_config, "zb-h1")[0]
    for iteration in range(10):
        assert split.run_iteration(iteration) == pytest.approx(whole.run_iteration(iteration), rel=1e-10)
        split.step(1.0)
        whole.step(1.0)


@pytest.mark.parametrize("blocks", [range(3), range(1, 3), range(1, 5), range(4, 5), range(5)])
def test_a_stage_gives_the_inputs_gradient_before_any_of_its_weights_has_one(
    small_config: TrainingConfig, blocks: range
) -> None:
    torch.manual_seed(3)
    specs = parameter_specs(small_config.model)
    held = {spec.name: Slice(0, spec.cut_size) for spec in specs if spec.block in blocks}
    parameters = {
        spec.name: torch.randn(spec.shape, dtype=torch.float64).mul_(0.3).requires_grad_()
        for spec in specs
        if spec.block in blocks
    }
    batch = Dataset(small_config).micro_batch(0, 1)
    region = TensorRegion(None, Phases(CpuDevice(), ProgressMark()))
    model = StageModel(small_config.model, blocks, held, region)
    width = small_config.model.width
    given = None if 0 in blocks else torch.randn(batch.documents.num_tokens, width, dtype=torch.float64)

    def entered() -> torch.Tensor | None:
        return None if given is None else given.clone().requires_grad_()

    direct_input, tape_input, tape = entered(), entered(), WeightTape(parameters)
    output = model.forward(direct_input, batch, Weights(parameters))
    gradient = torch.randn_like(output)
    torch.autograd.backward([output], [gradient])
    expected = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None

    torch.autograd.backward([model.forward(tape_input, batch, tape)], [gradient])
    assert all(parameter.grad is None for parameter in parameters.values())
    if direct_input is not None and tape_input is not None:
        torch.testing.assert_close(tape_input.grad, direct_input.grad, rtol=1e-10, atol=1e-14)
    tape.fill()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-13, msg=name)
        assert not parameter.grad.requires_grad, f"{name} would keep the graph of every micro-batch"


def test_a_micro_batch_is_in_the_sums_only_after_the_part_of_the_weights(
    small_config: TrainingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _ = runtime_of(small_config, "zb-h1")
    program = (
        Instruction(Op.FORWARD, 0),
        Instruction(Op.BACKWARD_INPUT, 0),
        Instruction(Op.FORWARD, 1),
        Instruction(Op.BACKWARD_INPUT, 1),
        Instruction(Op.BACKWARD_WEIGHT, 0),
    )
    monkeypatch.setattr(runtime, "_program", program)
    runtime.run_iteration(0)
    ledger = runtime.sums.ledger()
    assert {ledger.tally.sets[each.which] for each in ledger.stretches} == {frozenset({0})}
    assert set(ledger.tally.losses) == {0, 1}


def test_the_operations_of_both_parts_are_those_of_the_whole_and_paced_apart(small_config: TrainingConfig) -> None:
    whole, whole_device = runtime_of(small_config, "1f1b")
    split, split_device = runtime_of(small_config, "zb-h1")
    whole.run_iteration(0)
    split.run_iteration(0)
    for kind in (ComputeKind.FORWARD, ComputeKind.BACKWARD):
        assert split_device.total(kind) == pytest.approx(whole_device.total(kind), rel=1e-12)
        assert whole_device.total(kind) > 0.0
    segments = [flops for kind, flops in split_device.segments if kind is ComputeKind.BACKWARD]
    weights = [split.models[0].weight_flops(batch) for batch in split.batches]
    assert segments[1::2] == pytest.approx(weights), "each input's part is followed by the weights' part"
    assert whole_device.total(ComputeKind.BACKWARD) == pytest.approx(2.0 * whole_device.total(ComputeKind.FORWARD))


def test_attention_has_no_weights_and_the_embedding_no_input() -> None:
    assert backward_flops(1, 10.0, 4.0) == (18.0, 10.0)
    assert backward_flops(0, 10.0, 0.0) == (0.0, 20.0)


def test_a_stage_keeps_no_activation_of_a_micro_batch_that_is_done(small_config: TrainingConfig) -> None:
    runtime, _ = runtime_of(small_config, "zb-h1")
    runtime.run_iteration(0)
    flights = runtime._flights.values()
    assert len(flights) == small_config.workload.num_micro_batches
    assert all(flight.output is None and flight.tape is None and flight.entered is None for flight in flights)


def test_two_uses_of_one_weight_add_up() -> None:
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 4, dtype=torch.float64)
    tape = WeightTape({"w": weight})
    torch.autograd.backward([(tape.project(x, "w") + 2.0 * tape.project(3.0 * x, "w")).sum()])
    assert weight.grad is None
    tape.fill()
    expected = 7.0 * torch.ones(5, 3, dtype=torch.float64).T @ x
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, expected)
    tape.fill()
    torch.testing.assert_close(weight.grad, expected, msg="what is made is made once")
