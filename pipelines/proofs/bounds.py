"""What no plan of whole layers can beat.

Six bounds; the largest counts. *Work*: all work plus the idle time that devices cannot avoid at the start (the k-th
device to begin needs k layers done before it, and k messages; for fused backward as much at the end), over the speed of
the devices in use, and with them the *chain*: one micro-batch through the model and back, with the messages between
that many devices. *Queue*: the same, knowing that the first layers let one micro-batch through after another, and that
a micro-batch is at one device at a time. *Layer*: one layer sits on one device, so its passes of all micro-batches
follow one another, after the way to it and before the way back from it. *Count*: of any ``j * devices + 1`` layers some
device has j + 1. *Memory*: an activation is held from its F at least until the way to the last layer and back is over.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from evenkeel.pipelines.case import Backward, Case, PlacementRule, allowed


def lower_bound(case: Case) -> float:
    """The least time that any plan of a case can take, whatever its partition, placement and order."""
    return max(_queue_bound(case), _layer_bound(case), _count_bound(case), _memory_bound(case))


def work_bound(case: Case) -> float:
    """All work plus the unavoidable start (for fused backward also the end), or the chain of one micro-batch."""
    return min(_used_bound(case, used) for used in _numbers_of_devices(case))


def waits(times: Sequence[float], micro_batches: int, devices: int) -> list[float]:
    """For k = 0, 1, ... devices: until when no more than k of them can be at work at the start.

    Layers up to the i-th are on i + 1 devices at most; all others at work have a micro-batch each that has come out of
    them, and these come out one after another. Once a micro-batch is through it can be at several devices (its W).

    Args:
        times: F of the layers; or their backward, for the end of a fused one: it is the start seen from the end.
        micro_batches: Their number.
        devices: Their number.
    """
    through, result = sum(times), [0.0]
    for k in range(1, devices):
        way = heaviest = latest = 0.0
        for i, time in enumerate(times[:k]):
            way, heaviest = way + time, max(heaviest, time)
            waiting = k - i
            latest = max(latest, way + (waiting - 1) * heaviest) if waiting <= micro_batches else through
        result.append(min(latest, through))
    return result


def _queue_bound(case: Case) -> float:
    numbers, count = _numbers_of_devices(case), case.micro_batches
    starts = waits([layer.forward for layer in case.layers], count, numbers[-1])
    ends = [0.0] * len(starts)
    if case.backward is Backward.FUSED:
        ends = waits([_back(case, index) for index in range(len(case.layers))], count, numbers[-1])
    queues = [(start / max(case.speeds), end / max(case.speeds)) for start, end in zip(starts, ends, strict=True)]
    return min(_used_bound(case, used, queues) for used in numbers)


def useful_devices(case: Case) -> int:
    """How many devices the least of the work bounds is for: more only wait for each other's messages."""
    return min(_numbers_of_devices(case), key=lambda used: (_used_bound(case, used), -used))


def _numbers_of_devices(case: Case) -> range:
    most = min(case.devices, len(case.layers) if case.stages is None else case.stages)
    # Stages in circles fill the devices before a second one comes to the first.
    return range(most if case.placement is PlacementRule.CYCLIC and case.stages is not None else 1, most + 1)


def _back(case: Case, index: int) -> float:
    return case.passes(case.layers[index])[1]


def _used_bound(case: Case, used: int, queues: Sequence[tuple[float, float]] | None = None) -> float:
    """Work and chain of plans on this many devices; the fastest ones, which begin first."""
    speeds = sorted(case.speeds, reverse=True)[:used]
    roles = _role_work(case, used)
    work = case.micro_batches * (sum(layer.work for layer in case.layers) + roles)
    idle = lead = tail = 0.0
    for k, speed in enumerate(speeds):
        if k:
            lead += case.layers[k - 1].forward / speeds[0] + case.communication
            tail += _back(case, k - 1) / speeds[0] + case.communication if case.backward is Backward.FUSED else 0.0
        start, end = queues[k] if queues else (0.0, 0.0)
        idle += speed * (max(lead, start) + max(tail, end))
    chain = sum(layer.forward + _back(case, i) for i, layer in enumerate(case.layers)) + roles
    return max((work + idle) / sum(speeds), chain / speeds[0] + 2 * (used - 1) * case.communication)


def _role_work(case: Case, used: int) -> float:
    """What stages cost for one micro-batch on top of their layers, with as few of them as the devices in use allow."""
    if case.stage_bias is None:
        return 0.0
    first, middle, last = (
        role.forward + role.backward_input
        for role in (case.stage_bias.first, case.stage_bias.middle, case.stage_bias.last)
    )
    num_stages = case.stages or used
    return first if num_stages == 1 else first + last + (num_stages - 2) * middle


def _layer_bound(case: Case) -> float:
    best, way_to, way_back = 0.0, 0.0, 0.0
    for index, layer in enumerate(case.layers):
        here = case.micro_batches * (layer.forward + _back(case, index)) + way_back
        best = max(best, way_to + max(here, case.micro_batches * layer.work))
        way_to += layer.forward
        way_back += _back(case, index)
    return best / max(case.speeds)


def _count_bound(case: Case) -> float:
    works = sorted((layer.work for layer in case.layers), reverse=True)
    best = 0.0
    for together in range(1, (len(works) - 1) // case.devices + 1):
        last = together * case.devices
        best = max(best, sum(works[last - together : last + 1]))
    return case.micro_batches * best / max(case.speeds)


def _memory_bound(case: Case) -> float:
    """Activations of a layer that do not fit at once follow one another; all fill the memory for their time."""
    if case.memory_limit is None:
        return 0.0
    limit, count, layers = allowed(case.memory_limit), case.micro_batches, case.layers
    ways = [0.0, *accumulate(layer.forward for layer in layers)]
    rest, filled, best = 0.0, 0.0, 0.0
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        rest += layer.forward + _back(case, index)
        held = rest + case.passes(layer)[2]
        filled += count * layer.activation * held
        if layer.activation > 0:
            at_once = min(count, int(limit / layer.activation))
            best = max(best, ways[index] + ceil(count / at_once) * held)
    if limit > 0:
        best = max(best, filled / (case.devices * limit))
    return best / max(case.speeds)
