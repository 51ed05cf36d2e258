"""Process groups by torch's ``reconfigure`` (torch >= 2.14): members name one another by handles.

Not the default: it is no faster than a rebuild, and docs/engine.md has the measurements. Objects are new for every
epoch, because one whose peer hung never works again: its worker thread keeps waiting for the operation that is pending.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from evenkeel.trainer_sdk.groups.building.builder import (
    CONNECT_TIMEOUT_SECONDS,
    OPERATION_TIMEOUT_SECONDS,
    GroupSpec,
    StoreGroupBuilder,
)
from evenkeel.trainer_sdk.groups.c10d import Backend, Store, c10d
from evenkeel.trainer_sdk.groups.group import gloo_options
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous


def can_reconfigure(device: torch.device) -> bool:
    """Whether this torch can reconfigure groups of a device: gloo's, from 2.14 on."""
    return device.type == "cpu" and hasattr(c10d.ProcessGroupGloo._Options(), "enable_reconfigure")


class ReconfigureGroupBuilder(StoreGroupBuilder):
    """As :class:`StoreGroupBuilder`, with groups joined by handles, which travel in the meeting's announcements.

    They travel through the store, not in Prepare: gloo's handle names the store in which members find one another's
    addresses, so it is needed anyway, and everybody waits for the meeting anyway.

    Raises:
        ValueError: This torch cannot do it for the device.
    """

    def __init__(self, rank: int, rendezvous: Rendezvous, *, device: torch.device, **options: Any) -> None:
        if not can_reconfigure(device):
            raise ValueError(
                f"torch {torch.__version__} cannot reconfigure groups on {device}: gloo's can from torch 2.14 on; "
                'elsewhere leave "groups" at "rebuild"'
            )
        super().__init__(rank, rendezvous, device=device, **options)
        self._handle = str(self._unjoined(rendezvous.bare("handle"), rendezvous.host).get_reconfigure_handle())

    def meet(self, epoch: int, participants: Sequence[int], announcement: Any) -> list[Any]:
        """See :meth:`StoreGroupBuilder.meet`."""
        # The same for every object of this rank that has not joined a group yet.
        self._rendezvous.announce(f"{_handles(epoch)}/{self._rank}", self._handle)
        return super().meet(epoch, participants, announcement)

    def make_backend(
        self,
        rendezvous: Rendezvous,
        epoch: int,
        spec: GroupSpec,
        *,
        timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    ) -> Backend:
        """See :meth:`StoreGroupBuilder.make_backend`."""
        name = f"epoch/{epoch}/{spec.name}"
        backend = self._unjoined(rendezvous.bare(name), rendezvous.host, timeout_seconds)
        order = c10d.distributed_c10d.ReconfigureOptions()
        order.uuid = _identity(f"{rendezvous.job_id}/{name}")
        order.handles = list(rendezvous.read(_handles(epoch), spec.ranks).values())
        order.timeout = timedelta(seconds=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds))
        backend.reconfigure(order).wait()
        return backend

    def _unjoined(self, store: Store, host: str, timeout_seconds: float = OPERATION_TIMEOUT_SECONDS) -> Backend:
        options = gloo_options(timedelta(seconds=timeout_seconds), host)
        options.enable_reconfigure = True
        # Until it joins, place and size only have to tell this rank's handle from the others'.
        return c10d.ProcessGroupGloo(store, self._rank, self._rank + 1, options)


def _handles(epoch: int) -> str:
    return f"epoch/{epoch}/handle"


def _identity(name: str) -> int:
    """A number that no other group of the store has: 63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
