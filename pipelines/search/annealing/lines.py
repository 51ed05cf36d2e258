"""Lines: the passes of one kind of one stage, which are alike and done in turn.

Line ``kind * stages + stage`` with kinds F = 0, B = 1, W = 2. What is kept of each pass of a line stands in a row, that
of the layer with which a pass begins: so that what is known of some stages can be read for others that are cut anew.
"""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.tables import Floats, Ints, Stages, Table


class Lines(NamedTuple):
    """Of each line, ``kind * stages + stage``.

    Attributes:
        device: Its device.
        time: Of a pass.
        after: The line that needs it next on a micro-batch's way, -1 for none.
        beside: The line of the same stage that needs it too, -1 for none: W, and in reverse B.
        ways: How many passes may begin as far as that way goes.
        besides: And as far as the line beside goes.
    """

    device: Ints
    time: Floats
    after: Ints
    beside: Ints
    ways: Ints
    besides: Ints


@compiled
def lines_of(stages: Stages, is_reverse: bool) -> Lines:
    """The lines of some stages, or those of the reversed network."""
    kinds, num = stages.times.shape
    lines, count = kinds * num, stages.micro_batches
    device, time = np.empty(lines, np.int64), np.empty(lines)
    after, beside = np.full(lines, -1), np.full(lines, -1)
    ways, besides = np.zeros(lines, np.int64), np.full(lines, count)
    for kind in range(kinds):
        for stage in range(num):
            line = kind * num + stage
            device[line], time[line] = stages.device[stage], stages.times[kind, stage]
            if kind == 0 and is_reverse:
                after[line] = line - 1 if stage else -1
            elif kind == 0:
                after[line] = line + 1 if stage + 1 < num else line + num
            elif kind == 1 and is_reverse:
                after[line] = line + 1 if stage + 1 < num else line - num
                besides[line] = 0 if kinds == 3 else count
            elif kind == 1:
                after[line] = line - 1 if stage else -1
                beside[line] = line + num if kinds == 3 else -1
            else:
                beside[line] = line - num if is_reverse else -1
                ways[line] = count
                besides[line] = count if is_reverse else 0
    ways[num if is_reverse else 0] = count
    return Lines(device, time, after, beside, ways, besides)


@compiled
def rows_of(sizes: Ints, kinds: int) -> Ints:
    """Of each line its row: those of a kind are by the layer with which a pass of the stage begins."""
    num, num_layers, start = sizes.shape[0], sizes.sum(), 0
    rows = np.empty(kinds * num, np.int64)
    for stage in range(num):
        rows[stage] = start
        start += sizes[stage]
        for kind in range(1, kinds):
            rows[kind * num + stage] = kind * num_layers + start - 1
    return rows


@compiled
def by_layer(table: Table, sizes: Ints, stages: Stages, starts: Floats) -> Floats:
    """For every layer when its passes start, from the starts of the passes of its stage."""
    result, num_layers, start = np.empty(starts.shape), sizes.sum(), 0
    for stage in range(sizes.shape[0]):
        stop, speed = start + sizes[stage], table.speeds[stages.device[stage]]
        for layer in range(start, stop):
            for kind in range(table.sums.shape[0]):
                sums, first = table.sums[kind], kind * num_layers
                shift = sums[stop] - sums[layer + 1] if kind else sums[layer] - sums[start]
                source, shift = first + (stop - 1 if kind else start), shift / speed
                for turn in range(table.micro_batches):
                    result[first + layer, turn] = starts[source, turn] + shift
        start = stop
    return result
