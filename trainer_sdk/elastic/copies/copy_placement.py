"""Who keeps a copy of whose slices: it follows from the layout and the nodes alone, so every rank knows it.

A rank is exposed when something it holds would be gone with its failure domain: its node where the job has several,
else the rank itself. With two replicas on two nodes nobody is exposed, and there is nothing to copy. Placing copies
away from their owner's node is Gemini's rule (Wang et al., SOSP 2023).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.extents import extents_of
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """``keeper`` keeps a copy of everything that ``owner`` holds."""

    owner: int
    keeper: int

    @property
    def group_name(self) -> str:
        """A group of its own: broadcasts of one group must be issued in the same order at both ends."""
        return f"copy/{self.owner}-{self.keeper}"


def place_copies(
    specs: Sequence[ParameterSpec], layout: Layout, node_of: Callable[[int], str] | None = None
) -> tuple[Placement, ...]:
    """A keeper for every exposed rank, ascending by owner; none where nobody is exposed or nobody else is there.

    Keepers are on another node than the owner where there is one, share the work evenly, and stand as far from the
    owner as possible in the ring of the layout's ranks, so that neighbours do not keep one another's copies.

    Args:
        specs: The model's parameters.
        layout: Layout.
        node_of: Node of a rank; None when it is not known.
    """
    nodes = {rank: "" if node_of is None else node_of(rank) for rank in layout.ranks}
    by_node = len(set(nodes.values())) > 1
    domains = {rank: nodes[rank] if by_node else str(rank) for rank in layout.ranks}
    exposed: set[int] = set()
    for _, ranks in extents_of(specs, layout):
        if len({domains[rank] for rank in ranks}) == 1:
            exposed.update(ranks)
    place = {rank: index for index, rank in enumerate(layout.ranks)}
    size = len(place)
    kept = dict.fromkeys(layout.ranks, 0)
    placements = []
    for owner in sorted(exposed):

        def unfitness(rank: int, owner: int = owner) -> tuple[bool, int, int, int]:
            away = abs(place[rank] - place[owner])
            return by_node and nodes[rank] == nodes[owner], kept[rank], -min(away, size - away), rank

        candidates = [rank for rank in layout.ranks if rank != owner]
        if not candidates:
            continue
        keeper = min(candidates, key=unfitness)
        kept[keeper] += 1
        placements.append(Placement(owner=owner, keeper=keeper))
    return tuple(placements)


def copy_groups(placements: Sequence[Placement]) -> tuple[GroupSpec, ...]:
    """The groups over which copies travel, in the order in which every rank builds them."""
    return tuple(GroupSpec(name=place.group_name, ranks=(place.owner, place.keeper)) for place in placements)
