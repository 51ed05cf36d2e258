"""Orders the operations of some stages by priorities: a list schedule, forwards or in reverse, within a memory limit.

Whenever a device is free it takes the first of the operations that are ready; with a memory limit the first that is
admitted (:mod:`evenkeel.pipelines.search.dispatching.admission`).

Operation ``kind * stages * micro_batches + micro_batch * stages + stage`` with kinds F = 0, B = 1, W = 2. Per
micro-batch they are a chain (F up the stages, B down them) from which each W hangs.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.dispatching.admission import admitted, memory_of, release
from evenkeel.pipelines.search.dispatching.queues import Queue, pop, push, queue_of
from evenkeel.pipelines.search.tables import Floats, Ints, Stages, durations_of


class Listed(NamedTuple):
    """Start of each operation, and when the last one ends."""

    starts: Floats
    makespan: float


class _Work(NamedTuple):
    """Of each operation: its device, what comes after it (-1 for nothing), and how many it still needs."""

    device: Ints
    following: Ints
    missing: Ints


class _Devices(NamedTuple):
    """Of each device: its operation (-1 for none), when that ends, the work not begun, whether it may have a choice."""

    running: Ints
    ends: Floats
    left: Floats
    is_touched: Ints


class _Messages(NamedTuple):
    """Operations on their way between devices, in the order in which they arrive: all take equally long."""

    ops: Ints
    moments: Floats


class _Coming(NamedTuple):
    """What each device knows to come, from its queue's base on: when, and how urgent; and how many of them."""

    moments: Floats
    urgency: Floats
    num: Ints


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
    num_stages, delay, durations = stages.times.shape[1], stages.communication, durations_of(stages)
    num, has_target, has_limit = durations.shape[0], target < np.inf, limit < np.inf
    block = num_stages * stages.micro_batches
    has_weights = num == 3 * block and not is_reverse
    device_of, following, missing = _work(stages, num, is_reverse)
    running, ends, left, is_touched = _devices(stages)
    ready, memory = queue_of(stages, num), memory_of(stages, has_limit)
    messages, coming = _messages(stages), _coming(stages, num * has_target)
    due, num_due, sent, arrived = np.empty(num, np.int64), 0, 0, 0
    for op in range(num):
        left[device_of[op]] += durations[op]
        if missing[op] == 0:
            push(ready, device_of[op], priorities[op], op)
    starts, makespan, now = np.zeros(num), 0.0, 0.0
    while now < np.inf:
        for device in range(stages.num_devices):
            if not is_touched[device]:
                continue
            is_touched[device] = 0
            if running[device] >= 0 or ready.size[device] == 0:
                continue
            if coming.num[device] and _must_wait(device, ready, coming, durations, now, target):
                continue
            op = admitted(ready, device, stages, memory, limit, is_reverse) if has_limit else pop(ready, device)
            if op < 0:
                continue
            if now + left[device] > give_up:
                return Listed(starts, np.inf)
            starts[op], running[device], ends[device] = now, op, now + durations[op]
            left[device] -= durations[op]
            makespan = max(makespan, ends[device])
            after = following[op]
            if has_target and after >= 0 and device_of[after] != device:
                _announce(
                    ready.base[device_of[after]], device_of[after], ends[device] + delay, priorities[after], coming
                )
        now = messages.moments[arrived] if arrived < sent else np.inf
        for device in range(stages.num_devices):
            now = min(now, ends[device])
        for device in range(stages.num_devices):
            op = running[device]
            if ends[device] > now or op < 0:
                continue
            running[device], ends[device], is_touched[device] = -1, np.inf, 1
            if has_limit:
                release(op, device, stages, memory, is_reverse)
            if has_weights and block <= op < 2 * block:
                push(ready, device, priorities[op + block], op + block)
            after = following[op]
            if after >= 0 and delay > 0 and device_of[after] != device:
                messages.ops[sent], messages.moments[sent] = after, now + delay
                sent += 1
            elif after >= 0:
                due[num_due] = after
                num_due += 1
        while arrived < sent and messages.moments[arrived] <= now:
            due[num_due] = messages.ops[arrived]
            num_due, arrived = num_due + 1, arrived + 1
        while num_due > 0:
            num_due -= 1
            op = due[num_due]
            missing[op] -= 1
            if missing[op] == 0:
                push(ready, device_of[op], priorities[op], op)
                is_touched[device_of[op]] = 1
    return Listed(starts, makespan)


@compiled
def _must_wait(device: int, ready: Queue, coming: _Coming, durations: Floats, now: float, target: float) -> bool:
    """Whether what the device could start now would make something late that is known to come; forgets what came."""
    base = ready.base[device]
    end = now + durations[ready.values[base]]
    late = min(ready.keys[base], end - target)
    kept, is_late = base, False
    for each in range(base, base + coming.num[device]):
        if coming.moments[each] > now:
            coming.moments[kept], coming.urgency[kept] = coming.moments[each], coming.urgency[each]
            kept += 1
            is_late = is_late or (coming.urgency[each] < late and coming.moments[each] < end)
    coming.num[device] = kept - base
    return is_late


@compiled
def _announce(base: int, device: int, arrival: float, urgency: float, coming: _Coming) -> None:
    """Tells a device what will come to it."""
    entry = base + coming.num[device]
    coming.moments[entry], coming.urgency[entry] = arrival, urgency
    coming.num[device] += 1


@compiled
def _devices(stages: Stages) -> _Devices:
    num = stages.num_devices
    return _Devices(np.full(num, -1), np.full(num, np.inf), np.zeros(num), np.ones(num, np.int64))


@compiled
def _messages(stages: Stages) -> _Messages:
    most = 2 * stages.times.shape[1] * stages.micro_batches if stages.communication > 0 else 0
    return _Messages(np.empty(most, np.int64), np.empty(most))


@compiled
def _coming(stages: Stages, most: int) -> _Coming:
    return _Coming(np.empty(most), np.empty(most), np.zeros(stages.num_devices, np.int64))


@compiled
def _work(stages: Stages, num: int, is_reverse: bool) -> _Work:
    num_stages, device = stages.device.shape[0], np.empty(num, np.int64)
    for first in range(0, num, num_stages):
        for stage in range(num_stages):
            device[first + stage] = stages.device[stage]
    following, missing = _following(num_stages, num_stages * stages.micro_batches, num, is_reverse)
    return _Work(device, following, missing)


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
