"""Small random changes of an assignment, as machine code: sizes and devices of its stages are arrays."""

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.starts.balance import fits, score_of, window_loads
from evenkeel.pipelines.search.tables import Ints, Table

Cut = tuple[Ints, Ints]


@compiled
def below(generator: np.random.Generator, most: int) -> int:
    """A random whole number from 0 to ``most - 1``."""
    return min(int(generator.random() * most), most - 1)


@compiled
def two_of(generator: np.random.Generator, count: int) -> tuple[int, int]:
    """Two different random whole numbers from 0 to ``count - 1``."""
    first, second = below(generator, count), below(generator, count - 1)
    return first, second + (second >= first)


@compiled
def moved_cut(sizes: Ints, generator: np.random.Generator) -> Ints:
    """A layer more for one stage and one less for another; all cuts between them move with it."""
    count = sizes.shape[0]
    if count == 1:
        return sizes
    if generator.random() < 0.5:
        giver = below(generator, count - 1)
        taker = giver + 1
        if generator.random() < 0.5:
            giver, taker = taker, giver
    else:
        giver, taker = two_of(generator, count)
    if sizes[giver] == 1:
        return sizes
    changed = sizes.copy()
    changed[giver] -= 1
    changed[taker] += 1
    return changed


@compiled
def neighbour(table: Table, sizes: Ints, devices: Ints, generator: np.random.Generator) -> Cut:
    """One small change: a cut moved, devices swapped, a stage given away, split or joined.

    Gives the same sizes and devices where the chosen change is not possible.
    """
    count, num_devices = sizes.shape[0], table.speeds.shape[0]
    change = generator.random()
    if change < 0.4 or not table.may_move:
        return moved_cut(sizes, generator), devices
    if change < 0.7:
        if count > 1:
            a, b = two_of(generator, count)
            devices = devices.copy()
            devices[a], devices[b] = devices[b], devices[a]
        return sizes, devices
    stage = below(generator, count)
    if change < 0.8:
        devices = devices.copy()
        devices[stage] = below(generator, num_devices)
    elif table.stages > 0:
        return sizes, devices
    elif change < 0.92:
        if sizes[stage] > 1:
            return _split(sizes, devices, stage, below(generator, num_devices), generator)
    elif count > num_devices and stage + 1 < count:
        return _joined(sizes, devices, stage, stage + below(generator, 2))
    return sizes, devices


@compiled
def _split(sizes: Ints, devices: Ints, stage: int, device: int, generator: np.random.Generator) -> Cut:
    """A stage as two, one of them on another device."""
    count = sizes.shape[0]
    left = 1 + below(generator, sizes[stage] - 1)
    changed, moved = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    for each in range(count + 1):
        changed[each], moved[each] = sizes[each - (each > stage)], devices[each - (each > stage)]
    changed[stage], changed[stage + 1] = left, sizes[stage] - left
    moved[stage + below(generator, 2)] = device
    return changed, moved


@compiled
def _joined(sizes: Ints, devices: Ints, stage: int, gone: int) -> Cut:
    """A stage and the next one as one, without the device of one of them."""
    count = sizes.shape[0]
    changed, moved = np.empty(count - 1, np.int64), np.empty(count - 1, np.int64)
    for each in range(count - 1):
        changed[each], moved[each] = sizes[each + (each > stage)], devices[each + (each >= gone)]
    changed[stage] += sizes[stage + 1]
    return changed, moved


@compiled
def is_same(sizes: Ints, devices: Ints, other_sizes: Ints, other_devices: Ints) -> bool:
    """Whether two assignments are the same."""
    if sizes.shape[0] != other_sizes.shape[0]:
        return False
    for stage in range(sizes.shape[0]):
        if sizes[stage] != other_sizes[stage] or devices[stage] != other_devices[stage]:
            return False
    return True


@compiled
def balanced(
    table: Table, sizes: Ints, devices: Ints, generator: np.random.Generator, rounds: int, keeps_devices: bool
) -> Cut:
    """Climbs by small changes until the windows are even; the number of stages stays about as it is.

    Args:
        table: The case.
        sizes: Layers of each stage to begin with.
        devices: Their devices.
        generator: Source of the changes.
        rounds: How many changes to try.
        keeps_devices: Only cuts move, so that a pattern of devices stays as it is.
    """
    count, does_fit = sizes.shape[0], fits(table, sizes, devices)
    score = score_of(window_loads(table, sizes, devices))
    for _ in range(rounds):
        other = (moved_cut(sizes, generator), devices) if keeps_devices else neighbour(table, sizes, devices, generator)
        if abs(other[0].shape[0] - count) > 2 or not fits(table, other[0], other[1]):
            continue
        found = score_of(window_loads(table, other[0], other[1]))
        if found < score or (found == score and generator.random() < 0.3) or not does_fit:
            (sizes, devices), score, does_fit = other, found, True
    return sizes, devices
