"""Orders the operations of a network by priorities: a list schedule, forwards or in reverse, within a memory limit.

Whenever a device is free it takes the first of the operations that are ready. With a memory limit an F is admitted only
if the micro-batches could still be finished one after another, the oldest first, with what the device would then have
left (the banker's rule): so no order that it makes can ever be stuck.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import add

from pipelines.case import allowed
from pipelines.search.network import Network


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start of each operation, and when the last one ends."""

    starts: list[float]
    makespan: float


def dispatch(
    network: Network,
    priorities: Sequence[float],
    *,
    limit: float | None = None,
    is_reverse: bool = False,
    target: float | None = None,
) -> Schedule:
    """Schedules a network; the lower priority value goes first.

    Args:
        network: What to schedule.
        priorities: One for each operation.
        limit: Most activation a device may hold; None is no limit.
        is_reverse: Schedule the reversed network, from its end: starts then count back from the makespan.
        target: Makespan that the priorities aim at. They are then latest starts, counted back from it (so below 0), and
            a device waits for an operation that is known to come if what it could start now would make that one late.

    Raises:
        ValueError: The limit cannot hold one whole micro-batch on some device.
    """
    after = network.predecessors if is_reverse else network.successors
    missing = list(map(len, network.successors if is_reverse else network.predecessors))
    durations, device_of, delay = network.durations, network.device, network.communication
    memory = None if limit is None else _Memory(network, limit, is_reverse)
    ready: list[list[tuple[float, int]]] = [[] for _ in range(network.num_devices)]
    running = [-1] * network.num_devices
    starts = [0.0] * len(durations)
    events: list[tuple[float, int]] = [(0.0, op) for op, count in enumerate(missing) if not count]
    for _, op in events:
        missing[op] = 1
    coming: list[list[tuple[float, float]]] = [[] for _ in range(network.num_devices)]
    while events:
        now = events[0][0]
        touched = set()
        while events and events[0][0] <= now:
            op = heappop(events)[1]
            arrived: Sequence[int] = (op,)
            if op < 0:
                device = -1 - op
                ended = running[device]
                if memory is not None:
                    memory.release(ended)
                running[device] = -1
                touched.add(device)
                arrived = [each for each in after[ended] if device_of[each] == device] if delay else after[ended]
            for each in arrived:
                missing[each] -= 1
                if not missing[each]:
                    heappush(ready[device_of[each]], (priorities[each], each))
                    touched.add(device_of[each])
        for device in touched:
            if running[device] >= 0 or not ready[device]:
                continue
            if target is not None and coming[device]:
                coming[device] = [each for each in coming[device] if each[0] > now]
                first, next_op = ready[device][0]
                if _must_wait(coming[device], first, now + durations[next_op], target):
                    continue
            op = heappop(ready[device])[1] if memory is None else memory.choose(ready[device], device)
            if op < 0:
                continue
            starts[op] = now
            running[device] = op
            end = now + durations[op]
            heappush(events, (end, -1 - device))
            # What has no delay arrives with the end of the operation; only the rest is an event of its own.
            if target is None and not delay:
                continue
            for each in after[op]:
                other = device_of[each]
                if other == device:
                    continue
                if delay:
                    heappush(events, (end + delay, each))
                if target is not None:
                    coming[other].append((end + delay, priorities[each]))
    return Schedule(starts, max(map(add, starts, durations)))


def _must_wait(coming: list[tuple[float, float]], first: float, end: float, target: float) -> bool:
    """Whether something more urgent than ``first`` comes before its ``end``, and would then be late."""
    late = min(first, end - target)
    return any(urgency < late and arrival < end for arrival, urgency in coming)


class _Memory:
    """What each device holds, and whether it may take one more activation."""

    def __init__(self, network: Network, limit: float, is_reverse: bool) -> None:
        self._num = num = network.num_micro_batches
        self._num_stages = len(network.placement)
        self._block = self._num_stages * num
        last = 2 * self._block if network.is_split else self._block
        # Reversed, an activation is taken by what ends it and freed by its F; the last micro-batch is then the oldest.
        self._taken_by, self._freed_by = (last, 0) if is_reverse else (0, last)
        self._is_reverse = is_reverse
        self._limit = allowed(limit)
        self._sizes = network.activation
        self._device = network.device
        self._full = [0.0] * network.num_devices
        for stage, device in enumerate(network.placement):
            self._full[device] += network.activation[stage]
        if max(self._full) > self._limit:
            raise ValueError(f"one micro-batch does not fit into the limit {limit:g} with this placement")
        self._held = [[0.0] * num for _ in self._full]
        self._rest = [[full] * num for full in self._full]
        self._total = [0.0] * network.num_devices

    def choose(self, ready: list[tuple[float, int]], device: int) -> int:
        """Takes the best operation that may start out of the heap; -1 if none may."""
        refused: list[tuple[float, int]] = []
        chosen = -1
        while ready:
            entry = heappop(ready)
            offset = entry[1] - self._taken_by
            if not 0 <= offset < self._block or self._takes(device, offset):
                chosen = entry[1]
                break
            refused.append(entry)
        for entry in refused:
            heappush(ready, entry)
        return chosen

    def release(self, op: int) -> None:
        """Frees what an operation that has ended frees."""
        offset = op - self._freed_by
        if 0 <= offset < self._block:
            micro_batch, stage = divmod(offset, self._num_stages)
            device, age = self._device[op], self._num - 1 - micro_batch if self._is_reverse else micro_batch
            self._held[device][age] -= self._sizes[stage]
            self._total[device] -= self._sizes[stage]

    def _takes(self, device: int, offset: int) -> bool:
        micro_batch, stage = divmod(offset, self._num_stages)
        age, size = self._num - 1 - micro_batch if self._is_reverse else micro_batch, self._sizes[stage]
        if self._total[device] + size + self._full[device] > self._limit and not self._is_safe(device, age, size):
            return False
        self._held[device][age] += size
        self._rest[device][age] -= size
        self._total[device] += size
        return True

    def _is_safe(self, device: int, age: int, size: float) -> bool:
        """Whether all could still finish one after another: each needs its rest while all younger keep theirs."""
        held, rest, limit = self._held[device], self._rest[device], self._limit
        younger = sum(held[age:])
        if younger + rest[age] > limit:
            return False
        for older in range(age - 1, -1, -1):
            younger += held[older]
            if younger + size + rest[older] > limit:
                return False
        return True
