"""Proposes partitions and placements.

A proposal cuts the model into pieces of about equal work and deals them out in a pattern: in circles, or there and back
(a wave, which needs less memory because a device's late stages free what its early stages would otherwise hold long).
What the order of work makes of an assignment is not judged here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evenkeel.pipelines.case import Case, PlacementRule
from evenkeel.pipelines.proofs.bounds import useful_devices


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition and a placement: layers of each stage and device of each stage."""

    partition: tuple[int, ...]
    placement: tuple[int, ...]


def proposals(case: Case) -> Iterator[Assignment]:
    """Starting points: every useful number of stages, in circles and in waves, on all devices or the useful ones."""
    yield from _patterns(case, list(range(case.devices)))
    useful = useful_devices(case)
    if useful < min(case.devices, len(case.layers)) and case.placement is PlacementRule.ANY:
        fastest = sorted(range(case.devices), key=lambda device: -case.speeds[device])
        yield from _patterns(case, sorted(fastest[:useful]))


def _patterns(case: Case, devices: Sequence[int]) -> Iterator[Assignment]:
    num_layers, num_devices = len(case.layers), len(devices)
    if case.stages is not None:
        counts = [case.stages]
    else:
        most = max(1, num_layers // num_devices)
        chunks = [v for v in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32) if v <= most]
        counts = sorted({min(num_layers, v * num_devices) for v in chunks} | {min(num_layers, 2 * num_devices)})
        counts += [num_layers] if num_layers <= 4 * num_devices else []
    for count in dict.fromkeys(counts):
        placements = [in_turn(devices, count, is_wave=is_wave) for is_wave in (False, True)]
        for placement in dict.fromkeys(placements[: 1 if case.placement is PlacementRule.CYCLIC else 2]):
            yield Assignment(even_cuts(case, placement), placement)


def in_turn(devices: Sequence[int], count: int, *, is_wave: bool) -> tuple[int, ...]:
    """Devices of so many stages: in circles, or there and back."""
    row = [*devices, *reversed(devices)] if is_wave else devices
    return tuple([row[stage % len(row)] for stage in range(count)])


def even_cuts(case: Case, placement: Sequence[int]) -> tuple[int, ...]:
    """Sizes of stages of about equal time on their devices, at least one layer each."""
    count, num_layers = len(placement), len(case.layers)
    speeds = [case.speeds[device] for device in placement]
    total, speed_total = sum(layer.work for layer in case.layers), sum(speeds)
    targets = [total * reached / speed_total for reached in accumulate(speeds)]
    sizes: list[int] = []
    size, done = 0, 0.0
    for index, layer in enumerate(case.layers):
        left, open_stages = num_layers - index, count - len(sizes)
        if size and open_stages > 1 and (left < open_stages or done + layer.work / 2 > targets[len(sizes)]):
            sizes.append(size)
            size = 0
        size += 1
        done += layer.work
        if num_layers - index - 1 == count - len(sizes) - 1 and len(sizes) < count - 1:
            sizes.append(size)
            size = 0
    sizes.append(size)
    return tuple(sizes)
