"""Orders the operations of some stages by priorities: a list schedule, forwards or in reverse, within a memory limit.

Whenever a device is free it takes the first of the operations that are ready. With a memory limit an F is admitted only
if the micro-batches could still be finished one after another, the oldest first, with what the device would then have
left (the banker's rule): so no order that it makes can ever be stuck.

Operation ``kind * stages * micro_batches + micro_batch * stages + stage`` with kinds F = 0, B = 1, W = 2. Per
micro-batch they are a chain (F up the stages, B down them) from which each W hangs.
"""

from typing import NamedTuple

import numpy as np

from numeric.compiled import compiled
from pipelines.search.queues import Queue, pop, push, queue_of
from pipelines.search.tables import Floats, Ints, Stages


class Listed(NamedTuple):
    """Start of each operation, and when the last one ends."""

    starts: Floats
    makespan: float


class _Memory(NamedTuple):
    """What each device holds of each micro-batch, by age, and still needs for it, [devices, micro-batches]; sums."""

    held: Floats
    rest: Floats
    total: Floats
    full: Floats


@compiled
def durations_of(stages: Stages) -> Floats:
    """Time of each operation."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    durations = np.empty(kinds * block)
    for kind in range(kinds):
        for first in range(kind * block, (kind + 1) * block, num_stages):
            for stage in range(num_stages):
                durations[first + stage] = stages.times[kind, stage]
    return durations


@compiled
def list_schedule(
    stages: Stages, priorities: Floats, limit: float, target: float, is_reverse: bool, give_up: float
) -> Listed:
    """Schedules the operations; of those that are ready the one with the lowest priority value goes first.

    Args:
        stages: What to schedule.
        priorities: One for each operation.
        limit: Most activation a device may hold, infinite for no limit; one whole micro-batch fits into it.
        target: Makespan that the priorities aim at; infinite for none. They are then latest starts, counted back from
            it (so below 0), and a device waits for an operation that is known to come if what it could start now would
            make that one late.
        is_reverse: Schedule the reversed network, from its end: starts then count back from the makespan.
        give_up: Ends with an infinite makespan as soon as it is certain to be longer than this.
    """
    kinds, num_stages = stages.times.shape
    num_devices, delay = stages.num_devices, stages.communication
    block = num_stages * stages.micro_batches
    num = kinds * block
    has_target, has_limit = target < np.inf, limit < np.inf
    durations, device_of = durations_of(stages), _devices_of(stages, num)
    following, missing = _following(num_stages, block, num, is_reverse)
    ready = queue_of(stages, num)
    running, ends, is_touched = (
        np.zeros(num_devices, np.int64) - 1,
        np.zeros(num_devices) + np.inf,
        np.zeros(num_devices, np.int64) + 1,
    )
    # On their way between devices, in the order in which they arrive: all take equally long.
    on_way, moments, sent, arrived = np.empty(block * 2 * (delay > 0), np.int64), np.empty(block * 2), 0, 0
    # Of each device what it knows to come: when, and how urgent.
    coming, urgency, num_coming = (
        np.empty(num * has_target),
        np.empty(num * has_target),
        np.zeros(num_devices, np.int64),
    )
    memory = _memory(stages, has_limit)
    starts, makespan, now = np.zeros(num), 0.0, 0.0
    left = np.zeros(num_devices)
    for op in range(num):
        left[device_of[op]] += durations[op]
        if missing[op] == 0:
            push(ready, device_of[op], priorities[op], op)
    while True:
        for device in range(num_devices):
            if not is_touched[device]:
                continue
            is_touched[device] = 0
            if running[device] >= 0 or ready.size[device] == 0:
                continue
            base = ready.base[device]
            if num_coming[device]:
                end = now + durations[ready.values[base]]
                late = min(ready.keys[base], end - target)
                kept, must_wait = base, False
                for each in range(base, base + num_coming[device]):
                    if coming[each] > now:
                        coming[kept], urgency[kept] = coming[each], urgency[each]
                        kept += 1
                        must_wait = must_wait or (urgency[each] < late and coming[each] < end)
                num_coming[device] = kept - base
                if must_wait:
                    continue
            op = _admitted(ready, device, stages, memory, limit, is_reverse) if has_limit else pop(ready, device)
            if op < 0:
                continue
            if now + left[device] > give_up:
                return Listed(starts, np.inf)
            end = now + durations[op]
            left[device] -= durations[op]
            starts[op], running[device], ends[device] = now, op, end
            makespan = max(makespan, end)
            if has_target and following[op] >= 0 and device_of[following[op]] != device:
                other = device_of[following[op]]
                entry = ready.base[other] + num_coming[other]
                coming[entry], urgency[entry] = end + delay, priorities[following[op]]
                num_coming[other] += 1
        now = np.inf
        for device in range(num_devices):
            now = min(now, ends[device])
        if arrived < sent:
            now = min(now, moments[arrived])
        if now == np.inf:
            return Listed(starts, makespan)
        for device in range(num_devices):
            if ends[device] > now:
                continue
            op = running[device]
            running[device], ends[device], is_touched[device] = -1, np.inf, 1
            if has_limit:
                _release(op, device, stages, memory, is_reverse)
            if kinds == 3 and not is_reverse and block <= op < 2 * block:
                push(ready, device, priorities[op + block], op + block)
            after = following[op]
            if after < 0:
                continue
            if delay > 0 and device_of[after] != device:
                on_way[sent], moments[sent] = after, now + delay
                sent += 1
                continue
            missing[after] -= 1
            if missing[after] == 0:
                push(ready, device_of[after], priorities[after], after)
                is_touched[device_of[after]] = 1
        while arrived < sent and moments[arrived] <= now:
            after = on_way[arrived]
            arrived += 1
            missing[after] -= 1
            if missing[after] == 0:
                push(ready, device_of[after], priorities[after], after)
                is_touched[device_of[after]] = 1


@compiled
def _devices_of(stages: Stages, num: int) -> Ints:
    """Device of each operation."""
    devices, num_stages = np.empty(num, np.int64), stages.device.shape[0]
    for first in range(0, num, num_stages):
        for stage in range(num_stages):
            devices[first + stage] = stages.device[stage]
    return devices


@compiled
def _following(num_stages: int, block: int, num: int, is_reverse: bool) -> tuple[Ints, Ints]:
    """What needs each operation, -1 for nothing, and how many each needs; not told: each W needs its B."""
    following, missing = np.zeros(num, np.int64) - 1, np.zeros(num, np.int64) + 1
    is_split = num == 3 * block
    for first in range(0, block, num_stages):
        for op in range(first, first + num_stages):
            is_first, is_last = op == first, op == first + num_stages - 1
            if is_reverse:
                following[op] = -1 if is_first else op - 1
                following[block + op] = op if is_last else block + op + 1
                missing[block + op] = is_split + (not is_first)
                if is_split:
                    following[2 * block + op], missing[2 * block + op] = block + op, 0
            else:
                following[op] = block + op if is_last else op + 1
                following[block + op] = -1 if is_first else block + op - 1
                missing[op] = not is_first
    return following, missing


@compiled
def _memory(stages: Stages, has_limit: bool) -> _Memory:
    num_devices = stages.num_devices if has_limit else 0
    full = np.zeros(num_devices)
    rest = np.empty((num_devices, stages.micro_batches))
    if has_limit:
        for stage in range(stages.device.shape[0]):
            full[stages.device[stage]] += stages.activation[stage]
        for device in range(num_devices):
            for age in range(stages.micro_batches):
                rest[device, age] = full[device]
    return _Memory(np.zeros((num_devices, stages.micro_batches)), rest, np.zeros(num_devices), full)


@compiled
def _admitted(queue: Queue, device: int, stages: Stages, memory: _Memory, limit: float, is_reverse: bool) -> int:
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
def _takes(device: int, offset: int, stages: Stages, memory: _Memory, limit: float, is_reverse: bool) -> bool:
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
def _release(op: int, device: int, stages: Stages, memory: _Memory, is_reverse: bool) -> None:
    """Frees what an operation that has ended frees."""
    kinds, num_stages = stages.times.shape
    block = num_stages * stages.micro_batches
    offset = op - (0 if is_reverse else (kinds - 1) * block)
    if 0 <= offset < block:
        micro_batch, stage = divmod(offset, num_stages)
        age = stages.micro_batches - 1 - micro_batch if is_reverse else micro_batch
        memory.held[device, age] -= stages.activation[stage]
        memory.total[device] -= stages.activation[stage]
