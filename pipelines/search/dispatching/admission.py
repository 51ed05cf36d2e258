"""Within a memory limit: which operations a device may start, and what it holds.

An F is admitted only if the micro-batches could still be finished one after another, the oldest first, with what the
device would then have left (the banker's rule): so no order that is made so can ever be stuck. In a reversed schedule
an activation is taken by what ends it and freed by its F, and the last micro-batch is the oldest.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.dispatching.queues import Queue, pop, push
from evenkeel.pipelines.search.tables import Floats, Stages


class Memory(NamedTuple):
    """What each device holds of each micro-batch, by age, and still needs for it, [devices, micro-batches]; sums."""

    held: Floats
    rest: Floats
    total: Floats
    full: Floats


@compiled
def memory_of(stages: Stages, has_limit: bool) -> Memory:
    """Nothing is held yet; empty where there is no limit."""
    num_devices = stages.num_devices if has_limit else 0
    full = np.zeros(num_devices)
    rest = np.empty((num_devices, stages.micro_batches))
    if has_limit:
        for stage in range(stages.device.shape[0]):
            full[stages.device[stage]] += stages.activation[stage]
        for device in range(num_devices):
            for age in range(stages.micro_batches):
                rest[device, age] = full[device]
    return Memory(np.zeros((num_devices, stages.micro_batches)), rest, np.zeros(num_devices), full)


@compiled
def admitted(queue: Queue, device: int, stages: Stages, memory: Memory, limit: float, is_reverse: bool) -> int:
    """Takes the best operation that may start out of a device's queue; -1 if none may."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    # Reversed, an activation is taken by what ends it and freed by its F.
    taken_by = (kinds - 1) * block if is_reverse else 0
    refused = np.empty(queue.size[device], np.int64)
    keys, num_refused, chosen = np.empty(queue.size[device]), 0, -1
    while queue.size[device]:
        key = queue.keys[queue.base[device]]
        op = pop(queue, device)
        offset = op - taken_by
        if not 0 <= offset < block or _takes(device, offset, stages, memory, limit, is_reverse):
            chosen = op
            break
        refused[num_refused], keys[num_refused] = op, key
        num_refused += 1
    for each in range(num_refused):
        push(queue, device, keys[each], refused[each])
    return chosen


@compiled
def _takes(device: int, offset: int, stages: Stages, memory: Memory, limit: float, is_reverse: bool) -> bool:
    micro_batch, stage = divmod(offset, stages.device.shape[0])
    # Reversed, the last micro-batch is the oldest.
    age, size = stages.micro_batches - 1 - micro_batch if is_reverse else micro_batch, stages.activation[stage]
    held, rest, total = memory.held[device], memory.rest[device], memory.total
    if total[device] + size + memory.full[device] > limit:
        # All must still be able to finish one after another: each needs its rest while all younger keep theirs.
        younger = 0.0
        for each in range(age, stages.micro_batches):
            younger += held[each]
        if younger + rest[age] > limit:
            return False
        for older in range(age - 1, -1, -1):
            younger += held[older]
            if younger + size + rest[older] > limit:
                return False
    held[age] += size
    rest[age] -= size
    total[device] += size
    return True


@compiled
def release(op: int, device: int, stages: Stages, memory: Memory, is_reverse: bool) -> None:
    """Frees what an operation that has ended frees."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    offset = op - (0 if is_reverse else (kinds - 1) * block)
    if 0 <= offset < block:
        micro_batch, stage = divmod(offset, num_stages)
        age = stages.micro_batches - 1 - micro_batch if is_reverse else micro_batch
        memory.held[device, age] -= stages.activation[stage]
        memory.total[device] -= stages.activation[stage]
