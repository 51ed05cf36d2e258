"""Random layouts for property tests, shared by every area that takes a layout."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Order, Turn, cells_of
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route


@st.composite
def layouts(draw: st.DrawFn, max_blocks: int = 8, max_replicas: int = 3, max_width: int = 3) -> Layout:
    """Any valid layout: replicas that differ in splits, widths, shares and quotas, and a few standbys."""
    num_blocks = draw(st.integers(1, max_blocks))
    num_replicas = draw(st.integers(1, max_replicas))
    quotas = draw(
        st.lists(st.integers(0, 4), min_size=num_replicas, max_size=num_replicas).filter(lambda quotas: sum(quotas) > 0)
    )
    ranks = iter(draw(st.permutations(range(num_replicas * num_blocks * max_width + 3))))
    replicas = []
    for quota in quotas:
        inner = draw(st.sets(st.integers(1, num_blocks - 1), max_size=3)) if num_blocks > 1 else set()
        borders = [0, *sorted(inner), num_blocks]
        stages = []
        for first, stop in itertools.pairwise(borders):
            shares = draw(st.lists(st.integers(1, 5), min_size=1, max_size=max_width))
            stages.append(
                Stage(
                    first_block=first,
                    stop_block=stop,
                    ranks=tuple(next(ranks) for _ in shares),
                    shares=tuple(shares),
                )
            )
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    standbys = tuple(next(ranks) for _ in range(draw(st.integers(0, 2))))
    schedules = draw(st.sampled_from(((), ("1f1b", "zb-h1"))))
    return Layout(
        num_blocks=num_blocks,
        replicas=tuple(replicas),
        standbys=standbys,
        schedule=draw(st.sampled_from(("1f1b", "zb-h1"))),
        schedules=schedules,
    )


@st.composite
def routed_layouts(draw: st.DrawFn, max_stages: int = 5, max_replicas: int = 4, max_quota: int = 6) -> Layout:
    """A layout most of whose replicas have the same split, with any routes between them; widths differ."""
    num_stages = draw(st.integers(1, max_stages))
    num_blocks = num_stages + draw(st.integers(0, 2))
    quotas = draw(st.lists(st.integers(0, max_quota), min_size=2, max_size=max_replicas).filter(any))
    ranks = itertools.count()
    replicas = []
    for number, quota in enumerate(quotas):
        borders = range(num_stages)
        if number and num_stages > 1 and draw(st.integers(0, 3)) == 0:
            borders = range(num_stages - 1)  # one stage less: only the first ones are alike
        stages = [
            Stage(
                first_block=first,
                stop_block=first + 1 if first + 1 in borders else num_blocks,
                ranks=tuple(next(ranks) for _ in range(width)),
                shares=(1,) * width,
            )
            for first in borders
            for width in [draw(st.integers(1, 2))]
        ]
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    schedule = draw(st.sampled_from(("1f1b", "zb-h1")))
    layout = Layout(num_blocks=num_blocks, replicas=tuple(replicas), schedule=schedule, routable=True, whole=True)
    possible = possible_routes(layout)
    if not possible:
        return layout
    return replace(layout, routes=tuple(draw(st.lists(st.sampled_from(possible), unique_by=_place))))


@st.composite
def ordered_replicas(
    draw: st.DrawFn, num_blocks: int, groups: Sequence[tuple[int, ...]], max_quota: int = 4
) -> Replica:
    """A replica whose ranks hold several stages, in any placement, with any orders that can be carried out.

    Args:
        draw: Given by hypothesis.
        num_blocks: Blocks of the model.
        groups: Ranks of each cell; no more of them are used than there are blocks.
        max_quota: Most micro-batches.
    """
    num_stages = draw(st.integers(1, min(num_blocks, 3 * len(groups))))
    inner = draw(st.permutations(range(1, num_blocks)))[: num_stages - 1]
    borders = [0, *sorted(inner), num_blocks]
    homes = draw(st.lists(st.sampled_from(groups), min_size=num_stages, max_size=num_stages))
    shares = {group: draw(st.tuples(*[st.integers(1, 5) for _ in group])) for group in groups}
    stages = tuple(
        Stage(first_block=first, stop_block=stop, ranks=ranks, shares=shares[ranks])
        for (first, stop), ranks in zip(itertools.pairwise(borders), homes, strict=True)
    )
    quota = draw(st.integers(1, max_quota))
    return Replica(stages=stages, num_micro_batches=quota, orders=draw(any_orders(cells_of(homes), quota)))


@st.composite
def any_orders(draw: st.DrawFn, cells: Sequence[Sequence[int]], quota: int) -> tuple[Order, ...]:
    """Passes in an order in which everything may happen one after the other, dealt out to the cells."""
    home = {stage: cell for cell, stages in enumerate(cells) for stage in stages}
    last = len(home) - 1
    split = draw(st.booleans())
    chains = []
    for place in range(quota):
        forwards = [Turn(Op.FORWARD, place, stage) for stage in range(last + 1)]
        backward = Op.BACKWARD_INPUT if split else Op.BACKWARD
        chains.append([*forwards, *[Turn(backward, place, stage) for stage in range(last, -1, -1)]])
    orders: list[list[Turn]] = [[] for _ in cells]
    put_off: list[Turn] = []
    turns = draw(st.permutations([place for place, chain in enumerate(chains) for _ in chain]))
    for place in turns:
        turn = chains[place].pop(0)
        orders[home[turn.stage]].append(turn)
        if turn.op is Op.BACKWARD_INPUT:
            put_off.append(Turn(Op.BACKWARD_WEIGHT, turn.place, turn.stage))
        while put_off and (len(put_off) > 2 or draw(st.booleans())):
            weight = put_off.pop(0)
            orders[home[weight.stage]].append(weight)
    for weight in put_off:
        orders[home[weight.stage]].append(weight)
    return tuple(tuple(order) for order in orders)


def orders_one_by_one(cells: Sequence[Sequence[int]], quota: int) -> tuple[Order, ...]:
    """Each micro-batch goes through all stages and back before the next one."""
    orders = []
    for stages in cells:
        one = [(Op.FORWARD, s) for s in stages] + [(Op.BACKWARD, s) for s in reversed(stages)]
        orders.append(tuple(Turn(op, place, s) for place in range(quota) for op, s in one))
    return tuple(orders)


@st.composite
def ordered_layouts(draw: st.DrawFn, max_replicas: int = 2) -> Layout:
    """A layout some of whose replicas have ranks with several stages."""
    num_blocks = draw(st.integers(1, 7))
    ranks = itertools.count()
    replicas = []
    for _ in range(draw(st.integers(1, max_replicas))):
        widths = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
        groups = [tuple(next(ranks) for _ in range(width)) for width in widths]
        replicas.append(draw(ordered_replicas(num_blocks, groups)))
    return Layout(num_blocks=num_blocks, replicas=tuple(replicas), interleavable=draw(st.booleans()))


def possible_routes(layout: Layout) -> list[Route]:
    """Every route that a layout could have."""
    paths, found = Paths(layout), []
    for micro_batch in range(layout.num_micro_batches):
        home = paths.home(micro_batch)
        for s, own in enumerate(layout.replicas[home].stages):
            for d, replica in enumerate(layout.replicas):
                alike = s < len(replica.stages) and (own.first_block, own.stop_block) == (
                    replica.stages[s].first_block,
                    replica.stages[s].stop_block,
                )
                if d != home and alike:
                    found.append(Route(micro_batch=micro_batch, stage=s, replica=d))
    return found


def _place(route: Route) -> tuple[int, int]:
    return route.micro_batch, route.stage
