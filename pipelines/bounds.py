"""What no plan of whole layers can beat.

Three bounds; the largest counts. *Work*: all work plus the idle time that devices cannot avoid at the start (the
k-th device to begin needs k layers done before it; for fused backward as much at the end), over the speed of all.
*Chain*: one micro-batch through the model and back on the fastest device. *Layer*: one layer sits on one device, so its
F and B of all micro-batches follow one another, after the way to it and before the way back from it.
"""

from pipelines.case import Backward, Case


def lower_bound(case: Case) -> float:
    """The least time that any plan of a case can take, whatever its partition, placement and order."""
    return max(_work_bound(case), _chain_bound(case), _layer_bound(case))


def work_bound(case: Case) -> float:
    """All work plus the unavoidable start (for fused backward also the end), or the chain of one micro-batch."""
    return max(_work_bound(case), _chain_bound(case))


def _back(case: Case, index: int) -> float:
    layer = case.layers[index]
    weight = layer.backward_weight if case.backward is Backward.FUSED else 0.0
    return layer.backward_input + weight


def _work_bound(case: Case) -> float:
    fastest = max(case.speeds)
    work = case.micro_batches * sum(layer.work for layer in case.layers)
    idle, lead, tail = 0.0, 0.0, 0.0
    # A device idle at the start or end loses its speed's share of the common work; the fastest begin first.
    for k, speed in enumerate(sorted(case.speeds, reverse=True)):
        if k:
            index = min(k - 1, len(case.layers) - 1)
            lead += case.layers[index].forward
            tail += _back(case, index) if case.backward is Backward.FUSED else 0.0
        idle += speed * (lead + tail) / fastest
    used = sum(case.speeds) if len(case.layers) >= case.devices else sum(sorted(case.speeds)[-len(case.layers) :])
    return (work + (idle if len(case.layers) >= case.devices else 0.0)) / used


def _chain_bound(case: Case) -> float:
    chain = sum(layer.forward + _back(case, i) for i, layer in enumerate(case.layers))
    return chain / max(case.speeds)


def _layer_bound(case: Case) -> float:
    best, way_to, way_back = 0.0, 0.0, 0.0
    for index, layer in enumerate(case.layers):
        here = case.micro_batches * (layer.forward + _back(case, index))
        best = max(best, way_to + here + way_back)
        way_to += layer.forward
        way_back += _back(case, index)
    return best / max(case.speeds)
