"""When a stage asks its borders for tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.program.pipeline import Crossing, Pipeline
from evenkeel.trainer_sdk.elastic.program.topology import borders_of
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark

WIDTH = 2


@dataclass
class Wire:
    """A group over which every tensor comes at once."""

    name: str
    log: list[str]
    on_cpu: bool = True
    channel: object = None

    def start_broadcast(self, tensor: Tensor, source_rank: int) -> "Wire":
        self.log.append(f"ask {self.name} {len(tensor)}")
        return self

    def wait(self) -> None:
        self.log.append(f"wait {self.name}")


def middle_stage(log: list[str], **options: object) -> Pipeline:
    """Rank 1 of three stages; rank 0 sends it activations, rank 2 gradients."""
    layout = uniform_layout(num_blocks=3, tensor=1, pipeline=3, data=1, num_micro_batches=2)
    groups: Mapping[str, object] = {
        border.group_name: Wire(border.group_name, log, **options) for border in borders_of(layout)
    }
    phases = Phases(CpuDevice(), ProgressMark())
    return Pipeline(layout, 1, groups, phases, width=WIDTH, dtype=torch.float32, device=torch.device("cpu"))


def arrival(num_tokens: int, place: int = 0, *, is_gradient: bool = False) -> Crossing:
    border = 1 if is_gradient else 0  # of stage 1
    return Crossing(is_gradient=is_gradient, home=0, other=0, border=border, num_tokens=num_tokens, place=place)


EVERYTHING = [arrival(5, 0), arrival(7, 2), arrival(5, 4, is_gradient=True), arrival(7, 6, is_gradient=True)]


def test_every_border_is_asked_for_its_next_tensor_before_it_is_needed() -> None:
    log: list[str] = []
    pipeline = middle_stage(log)

    pipeline.expect(EVERYTHING)
    assert log == ["ask activation/0-1/0/0 5", "ask gradient/2-1/0/1 5"]
    log.clear()

    assert pipeline.receive(EVERYTHING[0]).shape == (5, WIDTH)
    assert log == ["wait activation/0-1/0/0", "ask activation/0-1/0/0 7"]
    log.clear()

    for one in EVERYTHING[1:]:
        assert len(pipeline.receive(one)) == one.num_tokens
    assert log == [
        "wait activation/0-1/0/0",
        "wait gradient/2-1/0/1",
        "ask gradient/2-1/0/1 7",
        "wait gradient/2-1/0/1",
    ]


def test_what_is_measured_is_asked_for_when_it_is_needed() -> None:
    log: list[str] = []
    pipeline = middle_stage(log, channel=object())

    pipeline.expect(EVERYTHING)
    assert log == []

    pipeline.receive(EVERYTHING[0])
    assert log == ["ask activation/0-1/0/0 5", "wait activation/0-1/0/0"]


def test_an_accelerator_is_asked_for_what_comes_before_what_it_needs_or_sends() -> None:
    log: list[str] = []
    pipeline = middle_stage(log, on_cpu=False)

    pipeline.expect(EVERYTHING)
    assert log == []

    pipeline.receive(EVERYTHING[0])
    assert log == ["ask activation/0-1/0/0 5", "wait activation/0-1/0/0"]
    log.clear()

    pipeline.send(torch.zeros(9, WIDTH), Crossing(is_gradient=False, home=0, other=0, border=1, num_tokens=9, place=5))
    assert log == ["ask activation/0-1/0/0 7", "ask gradient/2-1/0/1 5", "ask activation/1-2/0/1 9"]
    log.clear()

    for one in EVERYTHING[1:]:
        assert len(pipeline.receive(one)) == one.num_tokens
    assert log == [
        "wait activation/0-1/0/0",
        "wait gradient/2-1/0/1",
        "ask gradient/2-1/0/1 7",
        "wait gradient/2-1/0/1",
    ]


def test_an_iteration_that_was_given_up_leaves_nothing_behind() -> None:
    log: list[str] = []
    pipeline = middle_stage(log)
    pipeline.expect(EVERYTHING)
    log.clear()

    pipeline.expect([arrival(3)])
    assert len(pipeline.receive(arrival(3))) == 3
    assert log == ["ask activation/0-1/0/0 3", "wait activation/0-1/0/0"]
