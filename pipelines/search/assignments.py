"""Proposes partitions and placements, balances them, and changes them a little.

A proposal cuts the model into pieces of about equal work and deals them out in a pattern: in circles, or there and back
(a wave, which needs less memory because a device's late stages free what its early stages would otherwise hold long).
Balancing then moves the cuts and swaps the devices until the fullest device is as empty as moves of one kind can make
it. What the order of work makes of an assignment is not judged here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from pipelines.bounds import useful_devices
from pipelines.case import Backward, Case, PlacementRule, allowed


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition and a placement: layers of each stage and device of each stage."""

    partition: tuple[int, ...]
    placement: tuple[int, ...]


class Balance:
    """Judges assignments of one case by the work of the devices alone."""

    def __init__(self, case: Case) -> None:
        self._case = case
        layers = case.layers
        self._work = [0.0, *accumulate(layer.work for layer in layers)]
        self._lead = [0.0, *accumulate(layer.forward for layer in layers)]
        if case.backward is Backward.FUSED:
            self._tail = [0.0, *accumulate(layer.backward_input + layer.backward_weight for layer in layers)]
        else:
            self._tail = [0.0] * (len(layers) + 1)
        self._back = [0.0, *accumulate(layer.backward_input for layer in layers)]
        self._held = [0.0, *accumulate(layer.activation for layer in layers)]

    def loads(self, assignment: Assignment) -> list[float]:
        """For each device: when it can start, its work, and for fused backward what must follow its last operation."""
        case = self._case
        loads = [0.0] * case.devices
        edge = [-1.0] * case.devices
        start, elapsed, last = 0, 0.0, len(assignment.partition) - 1
        tail = 0.0
        for stage, (size, device) in enumerate(zip(assignment.partition, assignment.placement, strict=True)):
            stop = start + size
            speed = case.speeds[device]
            if edge[device] < 0:
                edge[device] = elapsed + tail
            work = self._work[stop] - self._work[start]
            forward = self._lead[stop] - self._lead[start]
            backward = self._tail[stop] - self._tail[start]
            if case.stage_bias is not None:
                roles = case.stage_bias
                bias = roles.first if not stage else roles.last if stage == last else roles.middle
                work += bias.forward + bias.backward_input
                forward += bias.forward
                backward += bias.backward_input
            loads[device] += case.micro_batches * work / speed
            elapsed += forward / speed
            tail += backward / speed
            start = stop
        return [load + max(first, 0.0) for load, first in zip(loads, edge, strict=True)]

    def fits(self, assignment: Assignment) -> bool:
        """Whether every device can hold at least one whole micro-batch."""
        limit = self._case.memory_limit
        if limit is None:
            return True
        held = [0.0] * self._case.devices
        start = 0
        for size, device in zip(assignment.partition, assignment.placement, strict=True):
            held[device] += self._held[start + size] - self._held[start]
            start += size
        return max(held) <= allowed(limit)

    def score(self, assignment: Assignment) -> tuple[float, float]:
        """The fullest device's time, then how uneven the devices are; less is better."""
        loads = self.loads(assignment)
        return max(loads), sum(load * load for load in loads)


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
        turns = [s % (2 * num_devices) for s in range(count)]
        circles = tuple(devices[turn % num_devices] for turn in turns)
        waves = tuple(devices[min(turn, 2 * num_devices - 1 - turn)] for turn in turns)
        placements = (circles,) if case.placement is PlacementRule.CYCLIC else (circles, waves)
        for placement in dict.fromkeys(placements):
            yield Assignment(even_cuts(case, placement), placement)


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


def neighbour(case: Case, assignment: Assignment, random: Random) -> Assignment:
    """One random small change: a cut moved, devices swapped, a stage given away, split or joined.

    Gives the assignment itself where the chosen change is not possible.
    """
    sizes, devices = list(assignment.partition), list(assignment.placement)
    count = len(sizes)
    free_places = case.placement is PlacementRule.ANY and case.devices > 1
    change = random.random()
    if change < 0.4 or not free_places:
        return _moved_cut(assignment, random)
    if change < 0.7 and count > 1:
        a, b = random.sample(range(count), 2)
        devices[a], devices[b] = devices[b], devices[a]
    elif change < 0.8:
        devices[random.randrange(count)] = random.randrange(case.devices)
    elif case.stages is None:
        stage = random.randrange(count)
        if change < 0.92:
            if sizes[stage] == 1:
                return assignment
            left = random.randrange(1, sizes[stage])
            sizes[stage : stage + 1] = [left, sizes[stage] - left]
            device = random.randrange(case.devices)
            devices.insert(stage + random.randrange(2), device)
        elif count > case.devices and stage + 1 < count:
            sizes[stage : stage + 2] = [sizes[stage] + sizes[stage + 1]]
            del devices[stage + random.randrange(2)]
    return Assignment(tuple(sizes), tuple(devices))


def _moved_cut(assignment: Assignment, random: Random) -> Assignment:
    """A layer more for one stage and one less for another; all cuts between them move with it."""
    sizes = list(assignment.partition)
    count = len(sizes)
    if count == 1:
        return assignment
    if random.random() < 0.5:
        a = random.randrange(count - 1)
        b = a + 1
    else:
        a, b = random.sample(range(count), 2)
    if random.random() < 0.5:
        a, b = b, a
    if sizes[a] == 1:
        return assignment
    sizes[a] -= 1
    sizes[b] += 1
    return Assignment(tuple(sizes), assignment.placement)


def balanced(
    case: Case, balance: Balance, assignment: Assignment, random: Random, rounds: int, *, keeps_devices: bool = False
) -> Assignment:
    """Climbs by small changes until the work is even; the number of stages stays about as it is.

    Args:
        case: The case.
        balance: Its judge.
        assignment: Where to begin.
        random: Source of the changes.
        rounds: How many changes to try.
        keeps_devices: Only cuts move, so that a pattern of devices stays as it is.
    """
    best, score = assignment, balance.score(assignment)
    for _ in range(rounds):
        other = _moved_cut(best, random) if keeps_devices else neighbour(case, best, random)
        if abs(len(other.partition) - len(assignment.partition)) > 2 or not balance.fits(other):
            continue
        found = balance.score(other)
        if found < score or (found == score and random.random() < 0.3) or not balance.fits(best):
            best, score = other, found
    return best
