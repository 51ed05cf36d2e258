"""Orders the operations of a network by priorities: a list schedule, forwards or in reverse, within a memory limit.

Whenever a device is free it takes the first of the operations that are ready, or waits a little for a better one that
is known to come (``patience``). With a memory limit an F is admitted only if the micro-batches could still be finished
one after another, the oldest first, with what the device would then have left (the banker's rule): so no order that it
makes can ever be stuck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pipelines.search.network import Network


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start of each operation, and when the last one ends."""

    starts: list[float]
    makespan: float


class _Memory:
    """What each device holds, and whether it may take one more activation."""

    __slots__ = ("_full", "_held", "_limit", "_rest", "_total")

    def __init__(self, network: Network, limit: float) -> None:
        num = network.num_micro_batches
        self._limit = limit + 1e-9
        self._full = [0.0] * network.num_devices
        for stage, device in enumerate(network.placement):
            self._full[device] += network.activation[stage]
        self._held = [[0.0] * num for _ in self._full]
        self._rest = [[full] * num for full in self._full]
        self._total = [0.0] * network.num_devices

    def admits(self, device: int, micro_batch: int, size: float) -> bool:
        if self._total[device] + size + self._full[device] <= self._limit:
            return True
        held, rest, limit = self._held[device], self._rest[device], self._limit
        later = sum(held[micro_batch:])
        if later + rest[micro_batch] > limit:
            return False
        for older in range(micro_batch - 1, -1, -1):
            later += held[older]
            if later + size + rest[older] > limit:
                return False
        return True

    def take(self, device: int, micro_batch: int, size: float) -> None:
        self._held[device][micro_batch] += size
        self._rest[device][micro_batch] -= size
        self._total[device] += size

    def release(self, device: int, micro_batch: int, size: float) -> None:
        self._held[device][micro_batch] -= size
        self._total[device] -= size


def dispatch(
    network: Network,
    priorities: Sequence[float],
    *,
    limit: float | None = None,
    patience: float = 0.0,
    is_reverse: bool = False,
) -> Schedule:
    """Schedules a network; the lower priority value goes first.

    Args:
        network: What to schedule.
        priorities: One for each operation.
        limit: Most activation a device may hold; None is no limit. Not used in reverse.
        patience: How long a device may wait for an operation of better priority, as a part of the time of the one that
            it could start now.
        is_reverse: Schedule from the end: starts then count backwards from the makespan, in the reversed network.

    Raises:
        ValueError: The limit cannot hold one whole micro-batch on some device.
    """
    after = network.predecessors if is_reverse else network.successors
    missing = [len(before) for before in (network.successors if is_reverse else network.predecessors)]
    durations, device_of, delay = network.durations, network.device, network.communication
    num_stages = len(network.placement)
    block = num_stages * network.num_micro_batches
    last_kind = 2 * block if network.is_split else block
    memory = None
    if limit is not None and not is_reverse:
        memory = _Memory(network, limit)
        if any(full > limit + 1e-9 for full in memory._full):
            raise ValueError(f"one micro-batch does not fit into the limit {limit:g} with this placement")
    ready: list[list[tuple[float, int]]] = [[] for _ in range(network.num_devices)]
    coming: list[list[tuple[float, float]]] = [[] for _ in range(network.num_devices)]
    running = [-1] * network.num_devices
    starts = [0.0] * len(durations)
    events: list[tuple[float, int]] = [(0.0, op) for op, count in enumerate(missing) if not count]
    for _, op in events:
        missing[op] = 1
    events.sort()
    makespan = 0.0
    while events:
        now = events[0][0]
        touched = set()
        while events and events[0][0] <= now:
            op = heappop(events)[1]
            if op < 0:
                device = -1 - op
                done, running[device] = running[device], -1
                if memory is not None and done >= last_kind:
                    micro_batch, stage = divmod(done - last_kind, num_stages)
                    memory.release(device, micro_batch, network.activation[stage])
                touched.add(device)
                continue
            missing[op] -= 1
            if not missing[op]:
                device = device_of[op]
                heappush(ready[device], (priorities[op], op))
                touched.add(device)
        for device in touched:
            if running[device] >= 0 or not ready[device]:
                continue
            op = _choose(ready[device], memory, device, block, num_stages, network.activation)
            if op < 0:
                continue
            if patience and coming[device]:
                until = now + patience * durations[op]
                known = coming[device] = [each for each in coming[device] if each[0] > now]
                if any(at < until and better < priorities[op] for at, better in known):
                    heappush(ready[device], (priorities[op], op))
                    continue
            if memory is not None and op < block:
                micro_batch, stage = divmod(op, num_stages)
                memory.take(device, micro_batch, network.activation[stage])
            starts[op] = now
            running[device] = op
            end = now + durations[op]
            makespan = max(makespan, end)
            heappush(events, (end, -1 - device))
            for each in after[op]:
                other = device_of[each]
                arrival = end if other == device else end + delay
                heappush(events, (arrival, each))
                if patience and missing[each] == 1:
                    coming[other].append((arrival, priorities[each]))
    return Schedule(starts, makespan)


def _choose(
    ready: list[tuple[float, int]],
    memory: _Memory | None,
    device: int,
    block: int,
    num_stages: int,
    activation: Sequence[float],
) -> int:
    """Takes the best operation that may start out of the heap; -1 if none may."""
    if memory is None:
        return heappop(ready)[1]
    refused: list[tuple[float, int]] = []
    chosen = -1
    while ready:
        entry = heappop(ready)
        op = entry[1]
        if op < block:
            micro_batch, stage = divmod(op, num_stages)
            if not memory.admits(device, micro_batch, activation[stage]):
                refused.append(entry)
                continue
        chosen = op
        break
    for entry in refused:
        heappush(ready, entry)
    return chosen
