"""What each stage of a cut and placed model costs on its device."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from evenkeel.pipelines.case import Case, Layer


def stage_costs(case: Case, partition: Sequence[int], placement: Sequence[int]) -> list[Layer]:
    """What each stage costs on its own device, as if it were one layer.

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
    stages = []
    for stage, (start, stop) in enumerate(pairwise(accumulate(partition, initial=0))):
        layers, speed = case.layers[start:stop], case.speeds[placement[stage]]
        bias = case.role_cost(stage, num_stages)
        times = (
            sum(layer.forward for layer in layers) + bias.forward,
            sum(layer.backward_input for layer in layers) + bias.backward_input,
            sum(layer.backward_weight for layer in layers),
        )
        # Whole numbers stay whole at speed 1, so that makespans can be compared exactly.
        f, b, w = times if speed == 1 else tuple(time / speed for time in times)
        activation = sum(layer.activation for layer in layers)
        stages.append(Layer(forward=f, backward_input=b, backward_weight=w, activation=activation))
    return stages
