"""Random layouts for property tests, shared by every area that takes a layout."""

import itertools

from hypothesis import strategies as st

from layouts.layout import Layout, Replica, Stage


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
