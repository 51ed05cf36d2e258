"""What each stage of a cut and placed model costs on its device."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.pipelines.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of the stages of one partition and placement, each for one micro-batch on the stage's own device.

    Attributes:
        device: Device of each stage.
        forward: Time of F.
        backward_input: Time of B.
        backward_weight: Time of W; B and W together are the fused backward.
        activation: Memory from the start of F to the end of B and W.
    """

    device: tuple[int, ...]
    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    activation: tuple[float, ...]


def stage_costs(case: Case, partition: Sequence[int], placement: Sequence[int]) -> StageCosts:
    """Costs of the stages of a partition and placement.

    Raises:
        ValueError: The partition does not cover the layers, or a device or the number of stages is not the case's.
    """
    num_stages = len(partition)
    if sum(partition) != len(case.layers) or min(partition) < 1:
        raise ValueError(
            f"a partition must cover {len(case.layers)} layers by stages of one or more: {list(partition)}"
        )
    if len(placement) != num_stages or not all(0 <= device < case.devices for device in placement):
        raise ValueError(f"each of {num_stages} stages needs a device from 0 to {case.devices - 1}: {list(placement)}")
    forward, backward_input, backward_weight, activation = [], [], [], []
    start = 0
    for stage, (size, device) in enumerate(zip(partition, placement, strict=True)):
        layers = case.layers[start : start + size]
        start += size
        bias = case.role_cost(stage, num_stages)
        speed = case.speeds[device]
        times = (
            sum(layer.forward for layer in layers) + bias.forward,
            sum(layer.backward_input for layer in layers) + bias.backward_input,
            sum(layer.backward_weight for layer in layers),
        )
        # Whole numbers stay whole at speed 1, so that makespans can be compared exactly.
        f, b, w = times if speed == 1 else tuple(time / speed for time in times)
        forward.append(f)
        backward_input.append(b)
        backward_weight.append(w)
        activation.append(sum(layer.activation for layer in layers))
    return StageCosts(
        device=tuple(placement),
        forward=tuple(forward),
        backward_input=tuple(backward_input),
        backward_weight=tuple(backward_weight),
        activation=tuple(activation),
    )
