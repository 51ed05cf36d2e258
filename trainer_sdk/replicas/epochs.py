"""From epoch to epoch: what one rank does to be in the same one as everybody else, with working groups."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED, is_of_a_peer
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.errors import Interrupted, WaitBroken
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.membership.director import Director, Evicted
from evenkeel.trainer_sdk.replicas.membership.patience import Patience
from evenkeel.trainer_sdk.replicas.membership.plans import Plans
from evenkeel.trainer_sdk.replicas.membership.reach import await_reach
from evenkeel.trainer_sdk.replicas.membership.roster import Again, Epoch, Ready
from evenkeel.trainer_sdk.replicas.place import Mates, Place
from evenkeel.trainer_sdk.replicas.shares import (
    Standing,
    StateLostError,
    check_alike,
    share_out,
    standing_from_text,
    standing_to_text,
)
from evenkeel.trainer_sdk.replicas.vote import Outcome


class Epochs:
    """The epochs of one rank. Training thread only, except :meth:`check`.

    Args:
        place: This rank.
        director: Decides them.
        builder: Builds their groups.
        mates: The replica's ranks.
        patience: Notices who hangs.
        plans: What the scheduler asks for; None where there is none.

    Attributes:
        place: This rank.
        group: Of this rank and its like in the other replicas; None where there are none.
    """

    def __init__(
        self,
        place: Place,
        director: Director,
        builder: GroupBuilder,
        mates: Mates,
        patience: Patience,
        plans: Plans | None = None,
    ) -> None:
        self.place = place
        self.group: Group | None = None
        self._director = director
        self._builder = builder
        self._mates = mates
        self._patience = patience
        self._plans = plans
        self._epoch: Epoch | None = None

    @property
    def epoch(self) -> Epoch:
        """The epoch that this rank is in."""
        assert self._epoch is not None, "a replica that trains is in an epoch"
        return self._epoch

    @property
    def newest(self) -> int:
        """Number of the newest epoch that was decided."""
        newest = self._director.newest
        return self.epoch.number if newest is None else newest.number

    @property
    def is_due(self) -> bool:
        """All have agreed to go over to a newer epoch at this border."""
        return self._director.passage.is_due

    @property
    def founds(self) -> bool:
        """This replica is there from the job's beginning."""
        epoch = self._epoch
        return epoch is not None and any(each.founds and each.replica == self.place.replica for each in epoch.members)

    def share(self, micro_batches: Sequence[int], complete: Sequence[int]) -> tuple[int, ...]:
        """This replica's part of some micro-batches, by the epoch's weights, of those that hold the whole state."""
        weights = {each.replica: each.weight for each in self.epoch.members if each.replica in complete}
        if not any(weights.values()):  # a plan left out all that are left
            weights = dict.fromkeys(weights, 1)
        return share_out(micro_batches, weights).get(self.place.replica, ())

    def join(self) -> None:
        """Say that this replica is ready; it gets into an epoch when the others say so."""
        await_reach(self.place, self._director.catch_up)
        lines = self._mates.gather(self._director.line)
        if self.place.index == 0:
            place, token = self.place, self._mates.token
            said = Ready(replica=place.replica, token=token, lines=lines, num_replicas=place.num_replicas)
            self._director.say(said)

    def check(self) -> None:
        """End here if the epoch is over. Any thread.

        Raises:
            Interrupted: It is.
        """
        if self._director.interrupted():
            raise Interrupted

    def take_plans(self) -> None:
        """Tell all replicas what the scheduler has told this one. At the beginning of a step.

        Raises:
            Evicted: The scheduler goes on without this replica.
        """
        if self._plans is not None:
            if self._plans.asked_to_leave:
                raise Evicted(EXIT_EVICTED)
            quotas = self._plans.committed()
            if quotas is not None:
                self._director.say(quotas)

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Around a wait for all members of the epoch, see :meth:`Patience.waiting`."""
        return self._patience.waiting(self.epoch, what)

    def broke(self, error: Exception) -> None:
        """Something ended a wait in the epoch."""
        self._director.passage.fail(str(error))

    def agree(self, heard: Outcome | None) -> bool:
        """Whether every mate has heard the vote; they step, and go over to another epoch, together or not at all."""
        upcoming = 0 if heard is None else min(each.next_epoch for each in heard.said.values())
        not_heard, not_upcoming = self._mates.highest(float(heard is None), -float(upcoming))
        if not_heard:
            return False
        self._director.passage.agree(int(-not_upcoming))
        return True

    def all_mates(self, is_so: bool) -> bool:
        """Whether something is so on every rank of the replica."""
        return not self._mates.highest(float(not is_so))[0]

    def enter(self, standing: Callable[[], Standing], go_on: Callable[[Sequence[Standing]], bool]) -> bool:
        """Go over to the newest epoch.

        Args:
            standing: How far this rank is.
            go_on: Called with everybody's standing when the groups are there; it may be called again for a later one.

        Returns:
            What ``go_on`` returned.

        Raises:
            Evicted: The others go on without this replica.
            StateLostError: This rank has a part of the state, and nobody has all of it.
        """
        while True:
            newest_of_all, *_ = self._mates.highest(float(self._director.next_epoch().number))
            self._epoch = self._director.enter(int(newest_of_all))
            said: bool | None = None
            mine = standing()
            try:
                with self.waiting("meeting"):
                    said = go_on(self._meet(self._epoch, mine))
            except WaitBroken as error:
                self._director.passage.fail(str(error))
            except StateLostError as error:
                if mine.synced:
                    raise
                self._director.say(Again(epoch=self._epoch.number, why=str(error)[:200], anew=True))
            if self.all_mates(said is not None):
                if self._plans is not None:
                    self._plans.entered(self._epoch.plan, mine.step)
                return bool(said)
            self.abandon()

    def side(self, one: int, other: int) -> Building:
        """A group of this rank's like in two replicas, built beside the work."""
        ranks = tuple(sorted(each * self.place.size + self.place.index for each in (one, other)))
        spec = GroupSpec(name=f"state/{ranks[0]}-{ranks[1]}", ranks=ranks)
        return self._builder.begin(self.epoch.number, spec, is_over=lambda: False)

    def abandon(self) -> None:
        """Leave the epoch's groups, pending operations and all."""
        group, self.group = self.group, None
        if group is not None:
            self._builder.abandon({group.name: group})

    def leave(self, standing: str, error: BaseException | None, *, in_order: bool) -> None:
        """Go away.

        Args:
            standing: How far this rank is.
            error: What its process ends with, if anything: then its mates, who wait for it elsewhere, end by its end.
            in_order: The mates come here too.

        Raises:
            Evicted: A mate is gone, or ``error`` says so.
        """
        finished = in_order and error is None
        is_victim = error is not None and is_of_a_peer(error) and self.place.size > 1
        self._director.ends()
        try:
            if is_victim:
                raise Evicted(EXIT_EVICTED)
            if finished:
                self._mates.highest(0.0)
        finally:
            self._director.leave(standing, finished=finished)

    def _meet(self, epoch: Epoch, standing: Standing) -> list[Standing]:
        """Build the epoch's groups and hear how far everybody is."""
        size = self.place.size
        specs = [
            GroupSpec(name=f"exchange/{index}", ranks=tuple(each.replica * size + index for each in epoch.members))
            for index in range(size)
        ]
        ranks = sorted(rank for spec in specs for rank in spec.ranks)
        told = self._builder.meet(epoch.number, ranks, standing_to_text(standing))
        groups = self._builder.add(epoch.number, specs if len(epoch.members) > 1 else ())
        self.group = groups.get(f"exchange/{self.place.index}")
        standings = [standing_from_text(text) for text in told]
        check_alike(standing, standings)
        return standings
