"""A deal: the device of every single layer, and random changes of it."""

from typing import NamedTuple

import numpy as np

from evenkeel.numeric.compiled import compiled
from evenkeel.pipelines.search.climbing.changes import Cut, below
from evenkeel.pipelines.search.tables import Floats, Ints, Table


class Deal(NamedTuple):
    """The device of each layer, and whether a stage begins there although the layer before is on the same device."""

    devices: Ints
    cuts: Ints


class Layers(NamedTuple):
    """Of each layer: which are alike, and its work for all micro-batches on a device of speed 1."""

    kinds: Ints
    works: Floats


def deal_of(sizes: Ints, devices: Ints) -> Deal:
    """The deal of some stages."""
    of_layers, cuts = np.repeat(devices, sizes), np.zeros(sizes.sum(), dtype=np.int64)
    begins = np.cumsum(sizes)[:-1]
    cuts[begins] = of_layers[begins] == of_layers[begins - 1]
    return Deal(of_layers, cuts)


@compiled
def stages_dealt(deal: Deal) -> Cut:
    """Sizes and devices of the stages of a deal."""
    devices, cuts = deal
    sizes, places, num = np.empty(devices.shape[0], np.int64), np.empty(devices.shape[0], np.int64), 0
    for layer in range(devices.shape[0]):
        if layer == 0 or cuts[layer] or devices[layer] != devices[layer - 1]:
            sizes[num], places[num] = 0, devices[layer]
            num += 1
        sizes[num - 1] += 1
    return sizes[:num], places[:num]


def layers_of(table: Table) -> Layers:
    """What an annealing knows of the layers of a case."""
    times = np.diff(table.sums, axis=1)
    kinds = np.unique(times, axis=1, return_inverse=True)[1].reshape(-1)
    return Layers(kinds.astype(np.int64), times.sum(axis=0) * table.micro_batches)


@compiled
def change(deal: Deal, kinds: Ints, num_devices: int, generator: np.random.Generator) -> None:
    """Makes one small random change: layers exchanged, most often two alike, given away, or joined to a neighbour."""
    devices, cuts = deal
    num, draw = devices.shape[0], generator.random()
    if draw < 0.22:
        _move_border(deal, generator)
    elif draw < 0.50:
        for _ in range(20):
            a, b = below(generator, num), below(generator, num)
            if devices[a] != devices[b] and kinds[a] == kinds[b]:
                devices[a], devices[b] = devices[b], devices[a]
                break
    elif draw < 0.64:
        a, b = below(generator, num), below(generator, num)
        devices[a], devices[b] = devices[b], devices[a]
    elif draw < 0.74:
        _swap_stages(deal, below(generator, num), below(generator, num))
    elif draw < 0.80:
        devices[below(generator, num)] = below(generator, num_devices)
    elif draw < 0.88:
        a, b = below(generator, num), below(generator, num)
        p, q = below(generator, num_devices), below(generator, num_devices)
        for layer in range(min(a, b), max(a, b) + 1):
            if devices[layer] == p:
                devices[layer] = q
            elif devices[layer] == q:
                devices[layer] = p
    elif draw < 0.94:
        a, b, c = below(generator, num), below(generator, num), below(generator, num)
        devices[a], devices[b], devices[c] = devices[b], devices[c], devices[a]
    elif num > 1:
        layer = 1 + below(generator, num - 1)
        if devices[layer] == devices[layer - 1]:
            cuts[layer] = 1 - cuts[layer]
        else:
            devices[layer], cuts[layer] = devices[layer - 1], 0


@compiled
def _move_border(deal: Deal, generator: np.random.Generator) -> None:
    """A layer where a stage ends joins the neighbour beyond."""
    devices, cuts = deal
    num = devices.shape[0] - 1
    if num < 1:
        return
    begin = below(generator, num)
    for each in range(num):
        layer = 1 + (begin + each) % num
        if devices[layer] != devices[layer - 1]:
            if generator.random() < 0.5:
                devices[layer] = devices[layer - 1]
            else:
                devices[layer - 1] = devices[layer]
            cuts[layer] = 0
            return


@compiled
def _swap_stages(deal: Deal, a: int, b: int) -> None:
    """The stages of two layers change places, if they are of two devices."""
    devices, cuts = deal
    device, other, num = devices[a], devices[b], devices.shape[0]
    if device == other:
        return
    for layer, now, new in ((a, device, other), (b, other, device)):
        first = last = layer
        while first > 0 and devices[first - 1] == now and not cuts[first]:
            first -= 1
        while last + 1 < num and devices[last + 1] == now and not cuts[last + 1]:
            last += 1
        devices[first : last + 1] = -1 - new
    for layer in range(num):
        if devices[layer] < 0:
            devices[layer] = -1 - devices[layer]
