"""Proposals for a model whose last layer is most of a device's work: the others' pipeline is built round it.

The head's device has the first layers beside it: their F fill the time before the head's first F, their backward and
weights the time after its last B, and in between nothing interrupts it. The layers between go round the other devices
in circles or waves.
"""

from collections.abc import Iterator
from dataclasses import replace

from evenkeel.pipelines.case import Case, PlacementRule
from evenkeel.pipelines.search.starts.assignments import Assignment, even_cuts, in_turn

_CHUNKS = (5, 4, 7, 10, 3, 2, 1)
_MOST_EARLY = 2
_HEAVY = 0.4


def heavy_proposals(case: Case) -> Iterator[Assignment]:
    """Starting points for a heavy last layer; none where it is not heavy or the case says where stages go."""
    head, devices, num_layers = case.layers[-1], case.devices, len(case.layers)
    even = sum(layer.work for layer in case.layers) / devices
    is_free = case.placement is PlacementRule.ANY and case.stages is None and case.stage_bias is None
    if not is_free or devices < 3 or num_layers < 2 * devices or head.work < _HEAVY * even:
        return
    own = case.speeds.index(max(case.speeds))
    others = [device for device in range(devices) if device != own]
    for chunks in _CHUNKS:
        for is_wave in (True, False):
            for early in range(1, _MOST_EARLY + 1):
                between = replace(
                    case,
                    layers=case.layers[early:-1],
                    devices=devices - 1,
                    speeds=tuple(case.speeds[device] for device in others),
                    memory_limit=None,
                )
                count = min(chunks * (devices - 1), len(between.layers))
                cuts = even_cuts(between, in_turn(range(devices - 1), count, is_wave=is_wave))
                yield Assignment((early, *cuts, 1), (own, *in_turn(others, count, is_wave=is_wave), own))
