"""A list schedule in which the first micro-batch goes through without a stop, for annealing: many a second.

When its forward passes can start is known ahead, as sums of F. Each device keeps these times free: what it starts
before must end by then. So the heaviest layer, most of all a head, begins as soon as it can. Passes of a stage and a
kind are alike and are taken in turn: of each such *line* a device only looks at the next one.

A pass is judged by a soft maximum of the devices' ends, and ends early where that is certain to be too much.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.annealing.lines import lines_of
from evenkeel.pipelines.search.annealing.soft_maximum import excess
from evenkeel.pipelines.search.tables import Floats, Ints, Stages

SPELLS = 160
"""Parts of a schedule, for which what a device idles after their start is kept."""


class Judge(NamedTuple):
    """What a schedule is judged by.

    Attributes:
        base: What of a device's end counts: how far it is above this. In units of time.
        most: A pass ends when the sum is certain to be above this; see :func:`excess`.
        idle: What each device idles after the start of each spell in a schedule before, [devices, spells].
        spell: Length of a spell.
        share: Part of that idle time that is expected again; 0 for what is certain alone.
    """

    base: float
    most: float
    idle: Floats
    spell: float
    share: float


class Passed(NamedTuple):
    """When each device ends, the sum of what they end above the base, the last end, and how many passes were begun.

    The last end is infinite, and the rest not to be used, if the schedule was ended early.
    """

    ends: Floats
    total: float
    makespan: float
    begun: int


@compiled
def express_pass(
    stages: Stages, rows: Ints, wanted: Floats, is_express: bool, is_reverse: bool, judge: Judge, starts: Floats
) -> Passed:
    """Schedules the stages; of what is ready the least wanted time goes first.

    Forwards a device waits for what is known to come if what it could start now would make that late.

    Args:
        stages: What to schedule.
        rows: Of each line its row in the next arguments.
        wanted: Latest starts, rising with the passes of a line, [rows, micro-batches].
        is_express: Keep the first micro-batch's way free; forwards only.
        is_reverse: Schedule the reversed network, from its end: starts then count back from the makespan.
        judge: When to end early.
        starts: Filled in, as wanted.
    """
    count, num_devices, delay, base = stages.micro_batches, stages.num_devices, stages.communication, judge.base
    lines = lines_of(stages, is_reverse)
    device_of, time, after, beside, ways, besides = lines
    num, num_stages = time.shape[0], stages.device.shape[0]
    # What each device may start, from first[device] on: lines and when their next passes are wanted; and how many.
    first, size = np.zeros(num_devices + 1, np.int64), np.zeros(num_devices, np.int64)
    choices, keys = np.empty(num, np.int64), np.empty(num)
    # Of each line: how many passes may begin, and how many have; and lines of which that is to be looked at.
    ready, begun, due, num_due = np.zeros(num, np.int64), np.zeros(num, np.int64), np.empty(2 * num, np.int64), 0
    left, is_touched = np.zeros(num_devices), np.ones(num_devices, np.bool_)
    for line in range(num):
        left[device_of[line]] += count * time[line]
        first[device_of[line] + 1] += 1
        due[num_due] = line
        num_due += 1
    for device in range(num_devices):
        first[device + 1] += first[device]
    # When the stages of the first micro-batch start, and by device which of them is next.
    way, next_stop, stop = np.zeros(num_stages), np.full(num_stages, -1), np.full(num_devices, -1)
    if is_express:
        for stage in range(1, num_stages):
            lag = delay if device_of[stage] != device_of[stage - 1] else 0.0
            way[stage] = way[stage - 1] + time[stage - 1] + lag
        for stage in range(num_stages - 1, -1, -1):
            next_stop[stage] = stop[device_of[stage]]
            stop[device_of[stage]] = stage
    # Of each device: what runs, till when, to which device that leads, and how urgent it is there.
    running, until = np.full(num_devices, -1), np.full(num_devices, np.inf)
    goes_to, urgency = np.full(num_devices, -1), np.full(num_devices, np.inf)
    messages = np.empty(2 * num_stages * count if delay > 0.0 else 0, np.int64)
    moments, sent, arrived = np.empty(messages.shape[0]), 0, 0
    ends, total = left.copy(), 0.0
    for device in range(num_devices):
        total += excess(ends[device], base)
    if total > judge.most:
        return Passed(ends, total, np.inf, 0)
    now, makespan, made = 0.0, 0.0, 0
    look = judge.spell if judge.share > 0.0 else np.inf
    while now < np.inf:
        for each in range(num_due):
            line = due[each]
            most, device = min(ways[line], besides[line]), device_of[line]
            if most > ready[line]:
                if ready[line] == begun[line]:
                    at = first[device] + size[device]
                    choices[at], keys[at] = line, wanted[rows[line], begun[line]]
                    size[device] += 1
                    is_touched[device] = True
                ready[line] = most
        num_due = 0
        for device in range(num_devices):
            if not is_touched[device]:
                continue
            is_touched[device] = False
            if running[device] >= 0:
                continue
            key, at, begin, stage, is_stop = np.inf, -1, first[device], stop[device], False
            for each in range(begin, begin + size[device]):
                if keys[each] < key:
                    key, at = keys[each], each
            if at < 0:
                continue
            end = now + time[choices[at]]
            if stage >= 0 and end > way[stage]:
                key, is_stop = np.inf, now >= way[stage]
                for each in range(begin, begin + size[device]):
                    if (is_stop and choices[each] == stage) or (
                        not is_stop and keys[each] < key and now + time[choices[each]] <= way[stage]
                    ):
                        key, at = keys[each], each
                if key == np.inf:
                    continue
                end = now + time[choices[at]]
            line = choices[at]
            if is_stop:
                stop[device] = next_stop[stage]
            elif not is_reverse:
                late, is_late = min(key, end), False
                for other in range(num_devices):
                    is_late |= goes_to[other] == device and urgency[other] < late and until[other] + delay < end
                for each in range(arrived, sent):
                    coming = messages[each]
                    if moments[each] < end and device_of[coming] == device:
                        is_late |= wanted[rows[coming], min(count - 1, ways[coming])] < late
                if is_late:
                    continue
            certain = now + left[device]
            if certain > ends[device]:
                total += excess(certain, base) - excess(ends[device], base)
                ends[device] = certain
                if total > judge.most:
                    return Passed(ends, total, np.inf, made)
            turn, row, follows = begun[line], rows[line], after[line]
            starts[row, turn] = now
            made += 1
            begun[line] = turn + 1
            left[device] -= time[line]
            running[device], until[device] = line, end
            makespan = max(makespan, end)
            if turn + 1 < ready[line]:
                keys[at] = wanted[row, turn + 1]
            else:
                size[device] -= 1
                last = begin + size[device]
                choices[at], keys[at] = choices[last], keys[last]
            goes_to[device] = -1
            if follows >= 0 and device_of[follows] != device:
                goes_to[device] = device_of[follows]
                urgency[device] = wanted[rows[follows], min(count - 1, ways[follows])]
        now = moments[arrived] if arrived < sent else np.inf
        for device in range(num_devices):
            now = min(now, until[device])
        for device in range(num_devices):
            if until[device] > now or running[device] < 0:
                continue
            line = running[device]
            running[device], until[device], goes_to[device], is_touched[device] = -1, np.inf, -1, True
            coming = beside[line]
            if coming >= 0:
                besides[coming] += 1
                due[num_due] = coming
                num_due += 1
            coming = after[line]
            if coming >= 0 and delay > 0.0 and device_of[coming] != device:
                messages[sent], moments[sent] = coming, now + delay
                sent += 1
            elif coming >= 0:
                ways[coming] += 1
                due[num_due] = coming
                num_due += 1
        while arrived < sent and moments[arrived] <= now:
            coming = messages[arrived]
            ways[coming] += 1
            due[num_due] = coming
            num_due, arrived = num_due + 1, arrived + 1
        if look <= now < np.inf:
            look = now + judge.spell
            spell = int(now / judge.spell) + 1
            expected = 0.0
            for device in range(num_devices):
                certain = ends[device]
                if running[device] < 0 and left[device] > 0.0:
                    certain = max(certain, now + left[device])
                idle = judge.idle[device, spell] if spell < SPELLS else 0.0
                expected += excess(certain + judge.share * idle, base)
            if expected > judge.most:
                return Passed(ends, total, np.inf, made)
    return Passed(ends, total, makespan, made)
