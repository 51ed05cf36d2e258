"""Seconds of replicas that run stages of one another's micro-batches: the longest path over all of them together.

All programs of a layout with routes follow one order (:func:`evenkeel.layouts.programs.schedules.routed_program`), and
that order hangs on no route: who runs an operation does not change when it is due. So one pass over the operations in
that order gives the longest path, and another set of routes is another pass over the same list.
"""

from collections.abc import Callable, Mapping, Sequence

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD, common_scale, moments_of

Hosts = Mapping[tuple[int, int], int]
"""Host of each (micro-batch, stage) that is not run at home."""

_StageParts = Sequence[Sequence[float]]


class JointRun:
    """Some replicas of a layout, under any routes among them.

    Args:
        layout: Layout; its own routes do not matter.
        replicas: Who works together.
        parts: Of each of them and each of its stages, seconds of a micro-batch of mean size: forward, backward; or
            forward, input's part, weights' part where the schedule splits the backward.
        transfer_seconds: Per transfer between stages.
        scales: Size of each replica's micro-batches; every replica of the layout has one.
    """

    def __init__(
        self,
        layout: Layout,
        replicas: Sequence[int],
        parts: Mapping[int, _StageParts],
        transfer_seconds: float,
        scales: Sequence[float],
    ) -> None:
        self._parts, self._num_stages = parts, {d: len(layout.replicas[d].stages) for d in replicas}
        scale, num_parts = common_scale(layout), 3 if layout.schedule in SPLIT_BACKWARD else 2
        due = []
        for home in replicas:
            last = len(layout.replicas[home].stages) - 1
            for place, micro_batch in enumerate(layout.micro_batches_of(home)):
                for s in range(last + 1):
                    moments = moments_of(layout, home, place, s, scale)[:num_parts]
                    # The last stage keeps its own output; nothing is sent after a weights' part.
                    delays = (0.0 if s == last else transfer_seconds, transfer_seconds, 0.0)
                    due += [
                        (at, part, home, s, micro_batch, delays[part], scales[home]) for part, at in enumerate(moments)
                    ]
        due.sort(key=lambda each: each[:4])
        self._operations = [(m, s, home, part, delay, size) for _, part, home, s, m, delay, size in due]

    @property
    def num_operations(self) -> int:
        """What one question costs: operations that are looked at."""
        return len(self._operations)

    def seconds(self, hosts: Hosts) -> float:
        """When the last operation ends."""
        parts = self._parts
        clocks = {d: [0.0] * num_stages for d, num_stages in self._num_stages.items()}
        arrivals: dict[int, float] = {}
        for micro_batch, s, home, part, delay, size in self._operations:
            host = hosts.get((micro_batch, s), home)
            row, seconds = clocks[host], parts[host][s][part] * size
            clock = row[s]
            if part < 2:
                arrival = arrivals.get(micro_batch, 0.0)
                if arrival > clock:
                    clock = arrival
                arrivals[micro_batch] = clock + seconds + delay
            row[s] = clock + seconds
        return max([max(row) for row in clocks.values()])


def together(layout: Layout) -> list[tuple[int, ...]]:
    """Replicas that routes tie together, in groups."""
    paths = Paths(layout)
    groups: list[set[int]] = []
    for home, host in sorted({(paths.home(route.micro_batch), route.replica) for route in layout.routes}):
        tied = [group for group in groups if home in group or host in group]
        groups = [group for group in groups if group not in tied]
        groups.append({home, host}.union(*tied))
    return [tuple(sorted(group)) for group in groups]


def slowest_replica(
    layout: Layout,
    parts_of: Callable[[int], _StageParts],
    seconds_of: Callable[[int], float],
    transfer_seconds: float,
) -> float:
    """Seconds of the slowest replica of a layout, those that routes tie together taken together.

    Args:
        layout: Layout; its mix makes micro-batches of replicas larger or smaller.
        parts_of: Seconds of a replica's stages, as in :class:`JointRun`.
        seconds_of: Seconds of a replica alone, with micro-batches of mean size.
        transfer_seconds: Per transfer between stages.
    """
    scales = sizes_of(layout)
    hosts = {(route.micro_batch, route.stage): route.replica for route in layout.routes}
    seconds: list[float] = []
    seen: set[int] = set()
    for group in together(layout) if layout.routes else ():
        seen.update(group)
        run = JointRun(layout, group, {d: parts_of(d) for d in group}, transfer_seconds, scales)
        seconds.append(run.seconds(hosts))
    seconds += [seconds_of(d) * scales[d] for d in range(len(layout.replicas)) if d not in seen]
    return max(seconds)


def sizes_of(layout: Layout) -> tuple[float, ...]:
    """Size of each replica's micro-batches, 1 = mean."""
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    return (1.0,) * len(quotas) if layout.mix is None else tuple(layout.mix.scales(quotas))
