"""Traces of the engine's communication, and whether they can all run to their end.

What a rank asks of its groups in an iteration does not depend on when others do it, so each rank can be run alone and
its trace kept. Traces are then played against each other under the strictest rules that groups may have: an operation
ends only once every member has asked for it, and a group's operations follow one another.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from evenkeel.trainer_sdk.groups.group import Group


class Ask(NamedTuple):
    """A rank asks a group for its next operation; it does not wait for it yet."""

    group: str
    what: str


class Await(NamedTuple):
    """A rank waits for the ``number``-th operation of a group."""

    group: str
    number: int


class Vote(NamedTuple):
    """A rank begins to vote on a step."""


Trace = list[Ask | Await | Vote]


@dataclass
class RecordedWork:
    """An operation that ends at once."""

    event: Await
    trace: Trace

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: object) -> bool:
        self.trace.append(self.event)
        return True

    def exception(self) -> None:
        return None


@dataclass
class RecordedBackend:
    """Writes down what is asked of a group, and leaves all tensors as they are."""

    group: str
    trace: Trace
    asked: int = field(default=0)

    def broadcast(self, tensor: Tensor, root: int) -> RecordedWork:
        tensor.zero_()
        return self._ask(f"{tensor.numel()} x {tensor.dtype} of member {root}")

    def allreduce(self, tensors: Sequence[Tensor], op: object) -> RecordedWork:
        return self._ask(f"{op} of {tensors[0].numel()} x {tensors[0].dtype}")

    def allgather(self, gathered: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor]) -> RecordedWork:
        for each in gathered[0]:
            each.copy_(tensors[0])
        return self._ask(f"all {tensors[0].numel()} x {tensors[0].dtype}")

    def _ask(self, what: str) -> RecordedWork:
        self.trace.append(Ask(self.group, what))
        self.asked += 1
        return RecordedWork(Await(self.group, self.asked - 1), self.trace)


class RecordedGroup(Group):
    """A group whose operations are written down; ``accelerator`` says what it passes for."""

    accelerator = False

    @property
    def on_cpu(self) -> bool:
        return not self.accelerator


def play(traces: Mapping[int, Trace], members: Mapping[str, Sequence[int]], *, takes_turns: bool = False) -> None:
    """Run all traces to their end.

    Args:
        traces: Of each rank.
        members: Ranks of each group.
        takes_turns: A rank does one operation at a time, of whatever group, in the order in which it asked.

    Raises:
        AssertionError: Ranks wait in a circle, members ask a group for different things, or a rank votes, or ends,
            while something is on its way: whoever votes may give up its groups, or measure them.
    """
    asked: dict[str, dict[int, list[str]]] = {name: {rank: [] for rank in ranks} for name, ranks in members.items()}
    lanes: dict[tuple[int, str], deque[Await]] = {}
    ended: set[Await] = set()
    awaited: dict[int, set[Await]] = {rank: set() for rank in traces}
    at = dict.fromkeys(traces, 0)

    def lane(rank: int, group: str) -> deque[Await]:
        return lanes.setdefault((rank, "" if takes_turns else group), deque())

    def go_on(rank: int) -> bool:
        """Let a rank do what it can do by itself: whether that was anything."""
        begin, trace = at[rank], traces[rank]
        while at[rank] < len(trace):
            event = trace[at[rank]]
            if isinstance(event, Ask):
                lane(rank, event.group).append(Await(event.group, len(asked[event.group][rank])))
                asked[event.group][rank].append(event.what)
            elif isinstance(event, Await):
                if event not in ended:
                    break
                awaited[rank].add(event)
            else:
                _assert_nothing_is_on_its_way(rank, asked, awaited[rank])
            at[rank] += 1
        return at[rank] > begin

    def end_operations() -> bool:
        """End what all its members have come to: whether that was anything."""
        due = {queue[0] for queue in lanes.values() if queue}
        ending = {
            one
            for one in due
            if all((queue := lane(rank, one.group)) and queue[0] == one for rank in members[one.group])
        }
        for one in ending:
            for rank in members[one.group]:
                lane(rank, one.group).popleft()
        ended.update(ending)
        return bool(ending)

    going = True
    while going:
        moved = sum(go_on(rank) for rank in traces)
        going = end_operations() or moved > 0
    stuck = {rank: trace[at[rank]] for rank, trace in traces.items() if at[rank] < len(trace)}
    assert not stuck, f"ranks that wait for ever: {stuck}"
    for name, by_rank in asked.items():
        assert len({tuple(each) for each in by_rank.values()}) == 1, f"members of {name} ask for different things"
    for rank in traces:
        _assert_nothing_is_on_its_way(rank, asked, awaited[rank])


def _assert_nothing_is_on_its_way(
    rank: int, asked: Mapping[str, Mapping[int, list[str]]], awaited: Collection[Await]
) -> None:
    mine = {Await(name, n) for name, by_rank in asked.items() for n in range(len(by_rank.get(rank, ())))}
    assert mine <= set(awaited), f"rank {rank} has operations on their way: {mine - set(awaited)}"
