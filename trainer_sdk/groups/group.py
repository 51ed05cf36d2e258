"""One process group of one epoch: the few collectives that the engine needs, all of them interruptible.

There is no send and no receive. A gloo receive cannot be waited for in slices (its first timeout closes the
connection), so point-to-point is a broadcast in a group of two, whose waits can be sliced.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.c10d import Backend, Store, c10d
from evenkeel.trainer_sdk.groups.channel import Channel
from evenkeel.trainer_sdk.groups.nccl import nccl_backend
from evenkeel.trainer_sdk.groups.waiting import FailedWork, Waiter, Work


class Reduction(StrEnum):
    """How a reduction combines values."""

    SUM = "sum"
    MAX = "max"


_BURIAL_POLL_SECONDS = 0.05
_OPS = {Reduction.SUM: c10d.ReduceOp.SUM, Reduction.MAX: c10d.ReduceOp.MAX}


@dataclass(slots=True)
class Pending:
    """A collective on its way. Keeps its tensors alive until somebody waited for it."""

    work: Work
    tensors: tuple[Tensor, ...]
    group: "Group"
    entered_seconds: float = 0.0

    def wait(self) -> None:
        """Wait for the result.

        Raises:
            WaitBroken: The rank should park.
        """
        group = self.group
        group.wait(self.work)
        channel = group.channel
        if channel is not None and not channel.sends and self.entered_seconds:
            channel.ended(self.entered_seconds, self.tensors[0].nbytes)


class Group:
    """Ranks that communicate. Used by the training thread only.

    Args:
        name: For people.
        ranks: Ranks of the job in the group, in the order of their places in it.
        rank: This rank.
        backend: A ``torch.distributed`` backend over exactly these ranks.
        waiter: How to wait.

    Attributes:
        others: The other ranks: whom a wait in this group waits for.
        channel: Where reductions and broadcasts are measured; None = they are not.
    """

    def __init__(self, name: str, ranks: tuple[int, ...], rank: int, backend: Backend, waiter: Waiter) -> None:
        self.name = name
        self.ranks = ranks
        self.others = tuple(each for each in ranks if each != rank)
        self._backend: Backend | None = backend
        self._waiter = waiter
        self._on_cpu = isinstance(backend, c10d.ProcessGroupGloo)
        self._newest: Work | None = None  # operation, unless it was waited for; those before it end before it
        self.channel: Channel | None = None

    @property
    def on_cpu(self) -> bool:
        """The backend works on CPU tensors, so a wait ends when the operation does."""
        return self._on_cpu

    def check(self) -> None:
        """End here if the rank is interrupted.

        Raises:
            Interrupted: It is.
        """
        self._waiter.check()

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """What is done inside is no part of an iteration: the channel does not see it."""
        channel, self.channel = self.channel, None
        try:
            yield
        finally:
            self.channel = channel

    def start_all_reduce(self, tensor: Tensor, op: Reduction = Reduction.SUM) -> Pending:
        """Reduce ``tensor`` in place over the group; the result is bit-identical everywhere."""
        entered = time.perf_counter()
        return Pending(self._start(lambda backend: backend.allreduce([tensor], _OPS[op])), (tensor,), self, entered)

    def all_reduce(self, tensor: Tensor, op: Reduction = Reduction.SUM) -> None:
        """As :meth:`start_all_reduce`, and wait.

        Raises:
            WaitBroken: The rank should park.
        """
        self.start_all_reduce(tensor, op).wait()

    def start_broadcast(self, tensor: Tensor, source_rank: int) -> Pending:
        """Send ``tensor`` from ``source_rank``, or receive into it. Broadcasts of a group arrive in order."""
        entered = time.perf_counter()
        work = self._start(lambda backend: backend.broadcast(tensor, self.ranks.index(source_rank)))
        if self.channel is not None and self.channel.sends:
            self.channel.sent(entered, tensor.nbytes)
        return Pending(work, (tensor,), self, entered)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Everybody's ``tensor``, stacked in the order of the group.

        Raises:
            WaitBroken: The rank should park.
        """
        gathered = [torch.empty_like(tensor) for _ in self.ranks]
        self.wait(self._start(lambda backend: backend.allgather([gathered], [tensor])))
        return torch.stack(gathered)

    def all_to_all(self, outgoing: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Exchange pieces of flat tensors.

        Args:
            outgoing: What this rank sends, destination after destination.
            sent: Elements for each place of the group.
            received: Elements from each place of the group.

        Raises:
            WaitBroken: The rank should park.
        """
        incoming = outgoing.new_empty(sum(received))
        self.wait(self._start(lambda backend: backend.alltoall_base(incoming, outgoing, list(received), list(sent))))
        return incoming

    def wait(self, work: Work) -> None:
        """Wait for one of this group's collectives."""
        if self._on_cpu:
            self._waiter.collective(work)
        else:
            self._waiter.kernel(work)
        if self._newest is work:
            self._newest = None

    def bury(self) -> None:
        """Free the backend; may block. On a helper thread, after nobody uses the group any more."""
        backend, self._backend = self._backend, None
        newest, self._newest = self._newest, None
        if backend is not None and not self._on_cpu:
            backend.abort()
        # Not in gloo's destructor: a thread that comes back from there while the interpreter ends aborts the process.
        while self._on_cpu and newest is not None and not newest.is_completed():
            time.sleep(_BURIAL_POLL_SECONDS)

    def _start(self, operation: Callable[[Backend], Work]) -> Work:
        """Start an operation. On a broken group too it is the wait that fails: whoever starts may be a hook."""
        assert self._backend is not None, f"group {self.name} was abandoned"
        try:
            self._newest = operation(self._backend)
            return self._newest
        except c10d.DistBackendError as error:  # NCCL's way; gloo says it to whoever waits
            return FailedWork(error.with_traceback(None))  # whose frames would hold the backend


def make_backend(
    store: Store, place: int, size: int, *, device: torch.device, timeout: timedelta, host: str
) -> Backend:
    """A gloo backend for CPU tensors or an NCCL backend for CUDA tensors; blocks until all peers are there.

    Args:
        store: A prefix of its own.
        place: This rank's place in the group.
        size: Number of ranks.
        device: Where the tensors live.
        timeout: For the whole life of each operation: waits are interruptible, so it only bounds a leak.
        host: Address of the interface that the others reach this rank by.
    """
    if device.type == "cuda":
        return nccl_backend(store, place, size, device=device, timeout=timeout)
    options = c10d.ProcessGroupGloo._Options()
    options._devices = [_gloo_device(host)]
    options._threads = 1  # operations of one group follow one another anyway
    options._timeout = timeout
    return c10d.ProcessGroupGloo(store, place, size, options)


@cache
def _gloo_device(host: str) -> Any:
    """One transport device, and so one I/O thread, for all groups of the process."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    create = c10d.ProcessGroupGloo.create_device
    return create(interface=interface) if interface else create(hostname=host)
