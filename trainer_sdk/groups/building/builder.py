"""All process groups of an epoch: what to build, and how, while the training thread stays interruptible."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch

from evenkeel.layouts.ranks.levels import WIDEST_GROUP
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.building.graveyard import bury
from evenkeel.trainer_sdk.groups.c10d import Backend
from evenkeel.trainer_sdk.groups.errors import PeerLost, WaitBroken
from evenkeel.trainer_sdk.groups.group import Group, make_backend
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

T = TypeVar("T")

MEETING_TIMEOUT_SECONDS = 600.0
"""Longest wait for all participants of an epoch; a joiner may wait for an iteration to end."""

CONNECT_TIMEOUT_SECONDS = 60.0
"""For one group's connections once everybody is ready: takes milliseconds unless somebody dies in it, which interrupts
it where somebody watches; a rank that gives up parks all others too, so a busy machine may take its time."""

OPERATION_TIMEOUT_SECONDS = 600.0
"""Bounds how long the pending operation of an abandoned group keeps its thread when a hung peer keeps its socket."""

SIDE_GROUP_TIMEOUT_SECONDS = 30.0
"""How long a member of a group beside the work waits for the others, who may be an iteration behind, and each
operation for its end."""

RESHAPING, _WAITING = "reshaping", "wait:others"
"""What the progress mark says of a rank that goes over to another layout, and of one that waits for others there."""

_LOOK_SECONDS = 0.25
"""Between looks into the store while groups are built: most are built by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group to build: a name that is unique within the epoch, and its ranks in order."""

    name: str
    ranks: tuple[int, ...]


class GroupBuilder:
    """Builds new groups for every epoch under a prefix of their own in the job's store.

    Args:
        rank: This rank.
        rendezvous: Connection to the store, used by the training thread.
        device: Where tensors live: chooses gloo or NCCL.
        waiter: How to wait.
        is_over: True when nobody will come to a meeting any more; ends the wait as an interrupt does.
        widest: Most ranks that meet in one group; more do it in levels.
        progress: Told when this rank waits for the others of an epoch, and when it goes on.
    """

    def __init__(
        self,
        rank: int,
        rendezvous: Rendezvous,
        *,
        device: torch.device,
        waiter: Waiter,
        is_over: Callable[[], bool] = lambda: False,
        widest: int = WIDEST_GROUP,
        progress: ProgressMark | None = None,
    ) -> None:
        self._rank = rank
        self._progress = progress or ProgressMark()
        self._rendezvous = rendezvous
        self._device = device
        self._waiter = waiter
        self._meeting_waiter = Waiter(lambda: waiter.interrupted() or is_over())
        self._widest = widest
        self._met_epoch = -1
        # Opened ahead: torch looks the peer's name up for every new connection, which takes seconds when DNS is slow.
        self._spare = rendezvous.another()

    def meet(self, epoch: int, participants: Sequence[int], announcement: Any) -> list[Any]:
        """Wait until all participants of an epoch are there, before they :meth:`add` its groups.

        Args:
            epoch: Epoch; never used for two different sets of participants.
            participants: Every rank that calls this for the epoch.
            announcement: JSON value for the others.

        Returns:
            What was announced, equal values once.

        Raises:
            WaitBroken: The rank should park.
        """
        if self._met_epoch != epoch:
            self._rendezvous.forget(f"epoch/{self._met_epoch}/")
            self._met_epoch = epoch
        meet = partial(
            self._rendezvous.meet,
            f"epoch/{epoch}/ready",
            self._rank,
            participants,
            announcement,
            waiter=self._meeting_waiter,
            timeout_seconds=MEETING_TIMEOUT_SECONDS,
            widest=self._widest,
        )
        return self.waits((), meet)

    def waits(self, others: tuple[int, ...], wait: Callable[[], T]) -> T:
        """Run what waits for others while an epoch begins, and let the progress mark say so."""
        self._progress.enter(_WAITING, others)
        result = wait()
        self.moved()
        return result

    def moved(self) -> None:
        """Let the progress mark say that this rank goes on with its way to the epoch."""
        self._progress.enter(RESHAPING)

    def add(self, epoch: int, specs: Sequence[GroupSpec]) -> dict[str, Group]:
        """Build groups of an epoch whose participants have met.

        Args:
            epoch: Epoch.
            specs: Groups, in an order that all their members share; those of which this rank is part are built.

        Raises:
            WaitBroken: The rank should park.
        """
        mine = [spec for spec in specs if self._rank in spec.ranks]
        if not mine:
            return {}
        building = Building(mine, partial(self.connect, self._spare, epoch))
        try:
            for number, spec in enumerate(mine, start=1):
                self._await(partial(building.has, number), epoch, spec)
        except WaitBroken as error:
            building.give_up()
            self._spare.close()
            self._spare = self._rendezvous.another()  # the build may hold the other one for minutes
            if isinstance(error, PeerLost):
                self._tell_broken(epoch)
            raise
        if building.error is not None:
            building.give_up()
            self._tell_broken(epoch)
            raise PeerLost(f"groups of epoch {epoch}: {building.error}") from building.error
        return building.groups

    def _await(self, is_built: Callable[[], bool], epoch: int, spec: GroupSpec) -> None:
        """Until a group is built, or will not be: the others wait for this rank until it has told them its part."""
        what, look_at_seconds = f"group {spec.name} of epoch {epoch}", time.monotonic() + _LOOK_SECONDS

        def has_told() -> bool:
            return is_built() or self._rendezvous.has_said(f"{_place(epoch, spec)}/")

        def has_met() -> bool:
            nonlocal look_at_seconds
            if is_built():
                return True
            if time.monotonic() > look_at_seconds:
                look_at_seconds = time.monotonic() + _LOOK_SECONDS
                if self._rendezvous.heard(_broken(epoch)):
                    raise PeerLost(f"groups of epoch {epoch}: another rank could not build its own")
            return False

        # What asks the store may wait for it: not before the others have this rank's part.
        self._waiter.until(has_told, CONNECT_TIMEOUT_SECONDS, what)
        self.waits((), partial(self._waiter.until, has_met, CONNECT_TIMEOUT_SECONDS, what))

    def _tell_broken(self, epoch: int) -> None:
        """Those that still wait for this rank's connections leave off too."""
        self._rendezvous.announce(_broken(epoch), True)

    def begin(self, epoch: int, spec: GroupSpec, *, is_over: Callable[[], bool]) -> Building:
        """Begin to build a further group of an epoch in the background, for tensors on the CPU; returns at once.

        Its connections are its own: whatever is on its way in it when it is given up harms no other group. An operation
        of NCCL that waits for its peer would hold up whatever else the GPU is to start.

        Args:
            epoch: Epoch; its participants have met.
            spec: The group; a member who does not begin it within ``SIDE_GROUP_TIMEOUT_SECONDS`` leaves it unbuilt.
            is_over: True ends a wait in the group as an interrupt does.
        """
        waiter = Waiter(lambda: self._waiter.interrupted() or is_over())

        def connect(spec: GroupSpec) -> Group:
            # A connection of its own: the spare one is for groups that somebody waits for.
            rendezvous = self._rendezvous.another()
            backend = self._make_backend(rendezvous, epoch, spec, torch.device("cpu"), SIDE_GROUP_TIMEOUT_SECONDS)
            return Group(spec.name, spec.ranks, self._rank, backend, waiter)

        return Building([spec], connect)

    def abandon(self, groups: Mapping[str, Group]) -> None:
        """Give groups up, pending operations and all; returns at once."""
        bury(groups.values())

    def connect(self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec) -> Group:
        """Build one group; blocks, on a helper thread."""
        backend = self._make_backend(rendezvous, epoch, spec, self._device, OPERATION_TIMEOUT_SECONDS)
        return Group(spec.name, spec.ranks, self._rank, backend, self._waiter)

    def _make_backend(
        self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec, device: torch.device, timeout_seconds: float
    ) -> Backend:
        """The transport of one group, connected; blocks."""
        name = _place(epoch, spec)
        if device.type == "cuda":
            # NCCL's own threads may look into a store whenever they like: they get one that needs no Python, and so
            # nobody here sees what is set in it.
            rendezvous.announce(f"{name}/builds/{self._rank}", True)
            store = rendezvous.bare(name)
        else:
            store = rendezvous.prefix(name)
        return make_backend(
            store,
            spec.ranks.index(self._rank),
            len(spec.ranks),
            device=device,
            timeout=timedelta(seconds=timeout_seconds),
            host=rendezvous.host,
        )


def _place(epoch: int, spec: GroupSpec) -> str:
    return f"epoch/{epoch}/{spec.name}"


def _broken(epoch: int) -> str:
    return f"epoch/{epoch}/broken"
