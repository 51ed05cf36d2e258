"""Lever: virtual stages. The ranks of a replica hold several stages each, wherever in the pipeline these are.

A micro-batch then passes the same ranks several times, each time through less of the model, so the pipeline fills and
drains in a fraction of the time; it crosses more borders, and a large part of the parameters moves. That pays where
micro-batches are few for the number of stages. A short run of the pipeline search finds cuts, places and the order of
all passes, the weights' part apart, together; interleaved 1F1B (Megatron-LM, arXiv 2104.04473) is among what it begins
with. Offered to jobs whose first layout is interleavable: their engine runs such layouts. Not where links are slow:
more would cross them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.layouts.layout import Layout, Replica
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.pipelined.pipeline_search import PipelineSearch
from evenkeel.planning.pipelined.routed import sizes_of
from evenkeel.planning.pipelined.virtual import bare, has_orders
from evenkeel.planning.repair import same, with_standbys
from evenkeel.planning.situation import Situation

if TYPE_CHECKING:
    from evenkeel.planning.search.candidate import Candidate

_WORTH = 0.995
_MAX_LOOKED_AT, _MAX_TRIED = 4, 2


class VirtualStages(Lever):
    """Several stages a rank."""

    name = "virtual_stages"
    asked = Asked.POLISH, 1

    def is_possible(self, situation: Situation) -> bool:
        """Whether the job's engine runs several stages a rank, or does so now."""
        return situation.may_have_orders

    def starts(
        self, situation: Situation, weighed: Sequence["Candidate"], *, thoroughly: bool
    ) -> Iterator[tuple["Candidate", Layout]]:
        """The fastest few of the candidates."""
        found: list[tuple[Candidate, Layout]] = []
        for candidate in sorted(weighed, key=lambda c: c.judged)[:_MAX_LOOKED_AT]:
            plain = bare(candidate.layout)
            if not any(same(plain, other) for _, other in found):
                found.append((candidate, plain))
        yield from found[:_MAX_TRIED]

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with several stages a rank in those of its replicas that would end later than the others without.

        Nothing when that is hardly faster. And the full shape as it was registered, where that is like it.
        """
        if situation.links:
            return
        registered, live = situation.with_orders, situation.throughputs.keys()
        if registered is not None and all(rank in live for rank in registered.ranks):
            yield with_standbys(registered, live)
        if not situation.home.interleavable:
            return
        scales = sizes_of(base)
        search = PipelineSearch(situation)
        plain = [
            situation.makespan(replica.stages, replica.num_micro_batches, base.schedule) * scale
            for replica, scale in zip(base.replicas, scales, strict=True)
        ]
        slowest, replicas = 0.0, list(base.replicas)
        for d in sorted(range(len(plain)), key=lambda d: (-plain[d], d)):
            if plain[d] <= slowest:
                break  # who ends before those that were changed has nothing to win for the iteration
            found = _best(situation, search, base.replicas[d])
            if found is None or found[0] * scales[d] >= plain[d] * _WORTH:
                slowest = plain[d]
                break
            replicas[d], slowest = found[1], max(slowest, found[0] * scales[d])
        if slowest < max(plain) * _WORTH:
            yield replace(base, replicas=tuple(replicas))

    def undone(self, before: Layout, after: Layout) -> Layout:
        """The plain pipelines of the same ranks."""
        return bare(after) if has_orders(after) else before

    def describe(self, before: Layout, after: Layout) -> str:
        """Which replicas have how many stages a rank."""
        was, becomes = (
            {d: (each.stages, each.orders) for d, each in enumerate(layout.replicas) if each.orders}
            for layout in (before, after)
        )
        if was == becomes:
            return ""
        if not becomes:
            return "every rank has one stage again"
        counts = {d: ", ".join(str(len(cell)) for cell in after.replicas[d].cells) for d in list(becomes)[:4]}
        told = "; ".join(f"replica {d} with {count} stages a rank" for d, count in counts.items())
        return f"orders of their own: {told}{'; and others' if len(becomes) > 4 else ''}"


def _best(situation: Situation, search: PipelineSearch, replica: Replica) -> tuple[float, Replica] | None:
    """The best form of a replica with several stages a rank, and its seconds; None where none is known."""
    if len(replica.stages) < 2 or not replica.num_micro_batches:
        return None
    found = search.best(replica)
    return None if found is None else (situation.ordered_seconds(found), found)
