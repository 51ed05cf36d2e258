"""The operations that wait at each device, by priority."""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.tables import Floats, Ints, Stages


class Queue(NamedTuple):
    """A binary heap for each device, from ``base[device]`` on: the lowest key first, of equal keys the lowest value."""

    base: Ints
    size: Ints
    keys: Floats
    values: Ints


@compiled
def queue_of(stages: Stages, num: int) -> Queue:
    """Empty, with a place for each of so many operations at its device."""
    base = np.zeros(stages.num_devices + 1, np.int64)
    for device in stages.device:
        base[device + 1] += num // stages.device.shape[0]
    for device in range(stages.num_devices):
        base[device + 1] += base[device]
    return Queue(base, np.zeros(stages.num_devices, np.int64), np.empty(num), np.empty(num, np.int64))


@compiled
def push(queue: Queue, device: int, key: float, value: int) -> None:
    """Puts an operation into a device's queue."""
    base, at = queue.base[device], queue.size[device]
    queue.size[device] += 1
    while at > 0:
        above = (at - 1) >> 1
        other = queue.keys[base + above]
        if other < key or (other == key and queue.values[base + above] < value):
            break
        queue.keys[base + at], queue.values[base + at] = other, queue.values[base + above]
        at = above
    queue.keys[base + at], queue.values[base + at] = key, value


@compiled
def pop(queue: Queue, device: int) -> int:
    """Takes the first operation out of a device's queue, which is not empty."""
    base, last = queue.base[device], queue.size[device] - 1
    queue.size[device] = last
    first, key, value = queue.values[base], queue.keys[base + last], queue.values[base + last]
    at, below = 0, 1
    while below < last:
        left, right = base + below, base + below + 1
        if below + 1 < last and (
            queue.keys[right] < queue.keys[left]
            or (queue.keys[right] == queue.keys[left] and queue.values[right] < queue.values[left])
        ):
            below, left = below + 1, right
        if key < queue.keys[left] or (key == queue.keys[left] and value < queue.values[left]):
            break
        queue.keys[base + at], queue.values[base + at] = queue.keys[left], queue.values[left]
        at, below = below, 2 * below + 1
    queue.keys[base + at], queue.values[base + at] = key, value
    return int(first)
