"""Which replica runs each stage of each micro-batch of a layout: its home, unless a route says otherwise."""

from collections.abc import Iterator
from itertools import pairwise

from evenkeel.layouts.layout import Layout


class Paths:
    """The ways of a layout's micro-batches through its replicas' stages.

    Args:
        layout: Layout.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._homes = [d for d, replica in enumerate(layout.replicas) for _ in range(replica.num_micro_batches)]
        self._hosts = {(route.micro_batch, route.stage): route.replica for route in layout.routes}

    def home(self, micro_batch: int) -> int:
        """The replica whose quota a micro-batch belongs to."""
        return self._homes[micro_batch]

    def host(self, micro_batch: int, stage: int) -> int:
        """The replica that runs a stage of a micro-batch."""
        return self._hosts.get((micro_batch, stage), self._homes[micro_batch])

    def hosted(self, replica: int, stage: int) -> tuple[int, ...]:
        """Micro-batches that a stage of a replica runs, ascending: its own that are not elsewhere, and guests."""
        guests = [index for (index, s), host in self._hosts.items() if s == stage and host == replica]
        own = [index for index in self._layout.micro_batches_of(replica) if (index, stage) not in self._hosts]
        return tuple(sorted(own + guests))

    def crossings(self) -> Iterator[tuple[int, int, int, int]]:
        """(home, stage, host of it, host of the stage after) wherever micro-batches go from replica to replica.

        Or stay in a replica that is not their home. Each once, ascending.
        """
        found = set()
        for micro_batch in {route.micro_batch for route in self._layout.routes}:
            home = self.home(micro_batch)
            hosts = [self.host(micro_batch, s) for s in range(len(self._layout.replicas[home].stages))]
            found |= {(home, s, *both) for s, both in enumerate(pairwise(hosts)) if both != (home, home)}
        yield from sorted(found)
