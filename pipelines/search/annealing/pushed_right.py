"""What a schedule says of the next one: the latest starts of its passes, and what each device idles late in it."""

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.annealing.express import SPELLS, Judge, express_pass
from evenkeel.pipelines.search.tables import Floats, Ints, Stages


@compiled
def latest_starts(stages: Stages, rows: Ints, starts: Floats) -> Floats:
    """Latest starts from a schedule pushed to the right, in its own time: a pass back in the order of the ends."""
    kinds, num_stages = stages.times.shape
    last, late = stages.micro_batches - 1, np.empty(starts.shape)
    latest, judge = np.empty(starts.shape), Judge(0.0, np.inf, np.empty((0, 0)), np.inf, 0.0)
    for kind in range(kinds):
        for stage in range(num_stages):
            row = rows[kind * num_stages + stage]
            for turn in range(last + 1):
                late[row, turn] = -(starts[row, last - turn] + stages.times[kind, stage])
    makespan = express_pass(stages, rows, late, False, True, judge, latest).makespan
    for kind in range(kinds):
        for stage in range(num_stages):
            row = rows[kind * num_stages + stage]
            for turn in range(last + 1):
                late[row, turn] = makespan - (latest[row, last - turn] + stages.times[kind, stage])
    return late


@compiled
def idle_to_come(stages: Stages, rows: Ints, starts: Floats, ends: Floats, spell: float) -> Floats:
    """What each device idles from the start of each spell to its end, [devices, spells]."""
    kinds, num_stages = stages.times.shape
    idle = np.zeros((stages.num_devices, SPELLS))
    for device in range(stages.num_devices):
        for each in range(SPELLS):
            idle[device, each] = max(0.0, min(spell, ends[device] - each * spell))
    for kind in range(kinds):
        for stage in range(num_stages):
            length, device = stages.times[kind, stage], stages.device[stage]
            for turn in range(stages.micro_batches):
                begin = starts[rows[kind * num_stages + stage], turn]
                end, each = begin + length, int(begin / spell)
                while begin < end and each < SPELLS:
                    until = min(end, (each + 1) * spell)
                    idle[device, each] -= max(0.0, until - begin)
                    begin, each = max(begin, until), each + 1
    for device in range(stages.num_devices):
        for each in range(SPELLS - 2, -1, -1):
            idle[device, each] += idle[device, each + 1]
    return idle
