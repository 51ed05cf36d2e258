"""The list schedule in plain Python, with one heap of events: what the machine code is compared with."""

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import add

from evenkeel.pipelines.search.dispatching.network import Network


def plain_list_schedule(
    network: Network,
    priorities: Sequence[float],
    *,
    limit: float | None = None,
    is_reverse: bool = False,
    target: float | None = None,
) -> tuple[list[float], float]:
    """Starts and makespan; arguments as those of the compiled ``list_schedule``."""
    durations, device_of, delay = network.durations, network.device, network.stages.communication
    successors = [network.successors(op) for op in range(len(durations))]
    predecessors: list[tuple[int, ...]] = [()] * len(durations)
    for op, needing in enumerate(successors):
        for each in needing:
            predecessors[each] = (*predecessors[each], op)
    after, before = (predecessors, successors) if is_reverse else (successors, predecessors)
    missing = list(map(len, before))
    memory = None if limit is None else _Memory(network, limit, is_reverse)
    ready: list[list[tuple[float, int]]] = [[] for _ in range(network.stages.num_devices)]
    running = [-1] * network.stages.num_devices
    starts = [0.0] * len(durations)
    events: list[tuple[float, int]] = [(0.0, op) for op, count in enumerate(missing) if not count]
    for _, op in events:
        missing[op] = 1
    coming: list[list[tuple[float, float]]] = [[] for _ in range(network.stages.num_devices)]
    while events:
        now = events[0][0]
        touched: set[int] = set()
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
        for device in sorted(touched):
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
    return starts, max(map(add, starts, durations))


def _must_wait(coming: list[tuple[float, float]], first: float, end: float, target: float) -> bool:
    """Whether something more urgent than ``first`` comes before its ``end``, and would then be late."""
    late = min(first, end - target)
    return any(urgency < late and arrival < end for arrival, urgency in coming)


class _Memory:
    """What each device holds, and whether it may take one more activation."""

    def __init__(self, network: Network, limit: float, is_reverse: bool) -> None:
        self._num = num = network.stages.micro_batches
        self._num_stages = len(network.placement)
        self._block = self._num_stages * num
        last = 2 * self._block if network.is_split else self._block
        # Reversed, an activation is taken by what ends it and freed by its F; the last micro-batch is then the oldest.
        self._taken_by, self._freed_by = (last, 0) if is_reverse else (0, last)
        self._is_reverse = is_reverse
        self._limit = limit
        self._sizes: list[float] = network.stages.activation.tolist()
        self._device = network.device
        self._full = [0.0] * network.stages.num_devices
        for stage, device in enumerate(network.placement):
            self._full[device] += self._sizes[stage]
        self._held = [[0.0] * num for _ in self._full]
        self._rest = [[full] * num for full in self._full]
        self._total = [0.0] * network.stages.num_devices

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
