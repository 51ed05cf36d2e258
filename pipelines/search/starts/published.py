"""Plans of the published schedules, as points to start from: so that a search ends behind none of them."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from evenkeel.layouts.cut import even_parts
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.schedules.gpipe import gpipe
from evenkeel.pipelines.schedules.interleaved import interleaved
from evenkeel.pipelines.schedules.one_stage import one_stage_each
from evenkeel.pipelines.schedules.zb_v import zb_v
from evenkeel.pipelines.search.starts.assignments import Assignment, even_cuts

_MOST_CHUNKS = 16


def published_plans(case: Case, may_help: Callable[[Assignment], bool]) -> Iterator[Plan]:
    """GPipe, 1F1B, ZB-H1, ZB-V and interleaved 1F1B with cuts by number and by work, where the case allows them.

    Args:
        case: The case; whether a plan keeps its memory limit and its rules is not looked at.
        may_help: Whether the plan of an assignment is wanted.
    """
    circle, num_layers = tuple(range(case.devices)), len(case.layers)
    forms: list[tuple[Callable[..., Plan], tuple[int, ...]]] = [
        (gpipe, circle),
        (partial(one_stage_each, schedule="1f1b"), circle),
        (partial(one_stage_each, schedule="zb-h1"), circle),
        (zb_v, circle + circle[::-1]),
    ]
    most = min(_MOST_CHUNKS, num_layers // case.devices)
    forms += [(partial(interleaved, chunks=chunks), circle * chunks) for chunks in range(1, most + 1)]
    for schedule, placement in forms:
        if len(placement) > num_layers:
            continue
        for cuts in dict.fromkeys((even_parts(num_layers, len(placement)), even_cuts(case, placement))):
            if may_help(Assignment(cuts, placement)):
                with suppress(ValueError):  # needs a split backward, or other chunks
                    yield schedule(case, partition=cuts)
