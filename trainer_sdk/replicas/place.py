"""Where a process stands: which replica, which rank of it, and whom else there is in it."""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import torch
from torch import distributed

from evenkeel.trainer_sdk.control.fleet.address import join_address
from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.errors import PeerLost
from evenkeel.trainer_sdk.groups.group import Group, Reduction, make_backend
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.replicas.membership.director import Evicted
from evenkeel.trainer_sdk.watch.identity import whole_number

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_HANG_SECONDS = 300.0
_INNER_TIMEOUT = timedelta(days=1)  # whoever waits here waits for a peer's backward; a peer's end ends the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process of a job of replicas.

    Attributes:
        job_id: Job.
        store_address: ``host:port`` of the job's stores, comma-separated; empty = there is one replica.
        replica: Its replica.
        num_replicas: How many replicas begin the job.
        index: Its rank within the replica.
        size: Ranks of a replica.
        token: Tells the replica's processes from those that it had before, where its launcher wants to know.
        hang_seconds: How long all others wait for a replica before it counts as gone: longer than any evaluation or
            checkpoint that one does while the others wait.
    """

    job_id: str = "job"
    store_address: str = ""
    replica: int = 0
    num_replicas: int = 1
    index: int = 0
    size: int = 1
    token: str = ""
    hang_seconds: float = _HANG_SECONDS

    @property
    def rank(self) -> int:
        """Its rank in the job."""
        return self.replica * self.size + self.index

    @classmethod
    def from_environment(cls) -> Self:
        """As the launcher says: ``EVENKEEL_STORE``, ``EVENKEEL_REPLICA``, ``EVENKEEL_NUM_REPLICAS``, and torchrun's.

        Raises:
            ValueError: A setting is missing, or is no number that fits the others.
        """
        settings = os.environ
        index, size = whole_number(settings, "RANK") or 0, whole_number(settings, "WORLD_SIZE") or 1
        if not settings.get("EVENKEEL_STORE"):
            if settings.get("EVENKEEL_REPLICA"):
                raise ValueError("EVENKEEL_REPLICA is set, EVENKEEL_STORE is not: give host:port of the job's stores")
            return cls(index=index, size=size)
        replica = whole_number(settings, "EVENKEEL_REPLICA")
        num_replicas = whole_number(settings, "EVENKEEL_NUM_REPLICAS")
        if replica is None or num_replicas is None or replica >= num_replicas:
            raise ValueError(
                f"EVENKEEL_REPLICA is {replica}, EVENKEEL_NUM_REPLICAS is {num_replicas}: set how many begin the job, "
                "and which of them this one is, counted from 0"
            )
        return cls(
            job_id=settings.get("EVENKEEL_JOB_ID") or "job",
            store_address=settings["EVENKEEL_STORE"],
            replica=replica,
            num_replicas=num_replicas,
            index=index,
            size=size,
            token=settings.get("EVENKEEL_TOKEN", ""),
            hang_seconds=hang_seconds_of(settings),
        )


def hang_seconds_of(settings: Mapping[str, str]) -> float:
    """How long all others wait for a replica.

    Raises:
        ValueError: It is no number, or 0.
    """
    seconds = whole_number(settings, "EVENKEEL_HANG_SECONDS")
    if seconds == 0:
        raise ValueError("EVENKEEL_HANG_SECONDS is 0: give a step that others wait for some seconds at least")
    return seconds or _HANG_SECONDS


def replica_mesh(place: Place) -> "DeviceMesh":
    """The mesh of the replica's ranks, to shard a model over."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - it takes seconds, and few want it

    _begin_torch()
    return init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (place.size,))


def _begin_torch() -> None:
    """Torch's own process group is the replica's."""
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


class Mates:
    """The ranks of a replica, who never part: what one does, all do. Training thread.

    Others' deaths do not interrupt a wait in here; a mate's death ends the process.

    A replica that has no others has a store of its own, in its first rank. Blocks until all mates are there.

    Args:
        place: This process.

    Attributes:
        token: Tells the replica's processes from those that it had before; the same on all its ranks.
        rendezvous: The job's stores.
    """

    def __init__(self, place: Place) -> None:
        self._group: Group | None = None
        self._store: Store | None = None
        told = [place.token or secrets.token_hex(8), place.store_address]
        if not place.store_address and place.index == 0:
            host = (place.size > 1 and os.environ.get("MASTER_ADDR")) or "127.0.0.1"
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, 0), family=family) as listener:
                port, taken = listener.getsockname()[1], listener.detach()
            self._store = c10d.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=taken)
            told[1] = join_address(host, port)
        if place.size > 1:
            _begin_torch()
            distributed.broadcast_object_list(told, src=0)
        self.token, store_address = told
        self.rendezvous = Rendezvous(store_address, place.job_id)
        if place.size > 1:
            backend = make_backend(
                self.rendezvous.prefix(f"replicas/mates/{self.token}"),
                place.index,
                place.size,
                device=torch.device("cpu"),
                timeout=_INNER_TIMEOUT,
                host=self.rendezvous.host,
            )
            self._group = Group("mates", tuple(range(place.size)), place.index, backend, Waiter(lambda: False))

    def highest(self, *numbers: float) -> tuple[float, ...]:
        """For each number the highest that a mate has.

        Raises:
            Evicted: A mate is gone.
        """
        if self._group is None:
            return numbers
        row = torch.tensor(numbers, dtype=torch.float64)
        try:
            self._group.all_reduce(row, Reduction.MAX)
        except PeerLost as error:
            raise Evicted(EXIT_EVICTED) from error
        return tuple(row.tolist())

    def gather(self, text: str) -> tuple[str, ...]:
        """What every mate says, in their order; each of at most 64 bytes."""
        if self._group is None:
            return (text,)
        rows = self._group.all_gather(torch.frombuffer(bytearray(text.encode().ljust(64)), dtype=torch.uint8))
        return tuple(row.numpy().tobytes().decode().strip() for row in rows)
