"""Seconds of a ZB-H1 pipeline whose micro-batches are alike: what its programs would take, without writing them."""

from collections.abc import Sequence


def zb_h1_makespan(
    stage_seconds: Sequence[tuple[float, float, float]], num_micro_batches: int, transfer_seconds: float
) -> float:
    """Seconds up to the last weights' part of the last stage to end.

    Step t runs, stage by stage, forward t, the input's part of micro-batch ``t - (stages - 1 - s)`` and the weights' part
    of micro-batch ``t - (stages - 1)``: each stage's own order, and whatever they wait for is there, as in 1F1B. What
    weights' parts are left then wait for nobody. For equal stages with w <= f and w <= b, and as many micro-batches as
    stages, that is m (f + b + w) + (p - 1) (f + b - w), the closed form of the paper (arXiv 2401.10241, table 2).

    Args:
        stage_seconds: (forward, backward of the input, backward of the weights) seconds of each stage.
        num_micro_batches: The replica's quota.
        transfer_seconds: Per transfer between stages.
    """
    last = len(stage_seconds) - 1
    clocks = [0.0] * (last + 1)
    gradients = [0.0] * (last + 2)
    numbered = [(s, *seconds) for s, seconds in enumerate(stage_seconds)]
    for step in range(num_micro_batches + last):
        arrival = 0.0
        for s, forward, backward, weight in numbered:
            clock = clocks[s]
            if step < num_micro_batches:
                clock = (arrival if arrival > clock else clock) + forward  # noqa: FURB136 - twice as fast as max()
                arrival = clock + transfer_seconds
            if last - s <= step < num_micro_batches + last - s:
                gradient = gradients[s + 1]
                clock = (gradient if gradient > clock else clock) + backward  # noqa: FURB136
                gradients[s] = clock + transfer_seconds
                if step >= last:
                    clock += weight
            clocks[s] = clock
    return max([clocks[s] + min(s, num_micro_batches) * weight for s, _, _, weight in numbered])
