"""A training loop's part in a job of replicas: steps that happen on all replicas or on none, whoever dies.

The protocol of a step: local sums, the exchange in the last backward, the vote behind it; after a failure whoever is
left keeps its sums, runs what is in nobody's, and exchanges again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer_sdk.groups.builder import GroupBuilder, GroupSpec
from trainer_sdk.groups.errors import Interrupted, PeerLost
from trainer_sdk.groups.group import Group
from trainer_sdk.replicas.buckets import Buckets, local
from trainer_sdk.replicas.director import Director
from trainer_sdk.replicas.place import Mates, Place
from trainer_sdk.replicas.roster import Epoch
from trainer_sdk.replicas.shares import Standing, settle, share_out, standing_from_text, standing_to_text
from trainer_sdk.replicas.vote import Outcome, Said, ballot

_EXCHANGE = "exchange"
_BROKEN_SECONDS = 1.0
"""How long after a broken connection to wait for word of a death, before the same ranks build new groups."""

_LARGEST_SEED = (1 << 63) - 1

_log = logging.getLogger("evenkeel.replicas")

Batches = Callable[[int, int], Any]
"""The batch of (step, micro-batch): the same whoever asks, and how often."""


class Replicas:
    """This process's part. Training thread only.

    Args:
        place: Which rank of which replica.
        model: Its model; every replica has the same parameters in the same order.
        director: Decides the epochs.
        builder: Builds their groups.
        mates: The replica's ranks.
        num_micro_batches: Of a step, over all replicas.
        line: ``host:port`` where others notice this process's end.
        seed: Of the noise in micro-batches.

    Attributes:
        step: Steps that this replica has finished, or is to finish next.
        loss: Mean loss over all micro-batches of the newest step.
    """

    def __init__(
        self,
        place: Place,
        model: nn.Module,
        director: Director,
        builder: GroupBuilder | None,
        mates: Mates,
        *,
        num_micro_batches: int,
        line: str = "",
        seed: int = 0,
    ) -> None:
        self.step = 0
        self.loss = float("nan")
        self.num_micro_batches = num_micro_batches
        self._place = place
        self._model = model
        self._director = director
        self._builder = builder
        self._mates = mates
        self._line = line
        self._seed = seed
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._buckets = Buckets(self._parameters)
        self._device = local(self._parameters[0]).device
        self._epoch: Epoch | None = None
        self._next_epoch = 0
        self._group: Group | None = None
        self._complete: tuple[int, ...] = ()
        self._is_complete = self._is_synced = place.num_replicas == 1
        self._todo: tuple[int, ...] | None = None  # None = the epoch's share
        self._heard: tuple[float, ...] = ()
        self._last_vote: tuple[float, ...] = ()
        self._broken = ""
        self._begin_step()

    # ---- what a loop calls

    def micro_batches(self, batches: Batches) -> Iterator[Any]:
        """This replica's micro-batches of a step; ends when the step is voted, and gradients are global then.

        Raises:
            RuntimeError: The loop's body did not call :meth:`backward` once for each.
            StateLostError: No replica that holds the whole state is left.
        """
        if self._is_open:
            raise RuntimeError("the step before was left in its middle: run micro_batches() to its end, without break")
        self._is_open = True
        self._enter_step()
        while True:
            todo, self._todo = self._todo or (), None
            for index in todo:
                if index == todo[-1]:
                    self._buckets.arm()
                # The same noise whoever runs it, and how often.
                torch.manual_seed((self._seed * 0x9E3779B1 + self.step) * 0x85EBCA77 + index & _LARGEST_SEED)
                self._owes_backward = True
                yield batches(self.step, index)
                if self._owes_backward:
                    raise RuntimeError("call run.backward(loss) once for each micro-batch: it was not called")
                self._done.append(index)
            if self._settle():
                break
        self._is_open = False

    def backward(self, loss: Tensor, weight: float = 1.0) -> None:
        """Add a micro-batch's gradients to the step's.

        Args:
            loss: A scalar.
            weight: Its part of the step's mean, for example its number of tokens where the loss is their mean.

        Raises:
            RuntimeError: There is no micro-batch that has not had its backward.
        """
        if not self._owes_backward:
            raise RuntimeError("call run.backward(loss) once for each micro-batch of run.micro_batches(...)")
        self._owes_backward = False
        self._weight += weight
        self._loss += loss.detach().double() * weight
        (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Go away in order: whoever has not heard of the newest step learns it from what this leaves behind."""
        if self._epoch is not None:
            self._director.leave(standing_to_text(replace(self._standing(), done=())))

    # ---- a step

    def _begin_step(self) -> None:
        self._is_open: bool = False
        self._owes_backward: bool = False
        self._done: list[int] = []
        self._weight = 0.0
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)

    def _enter_step(self) -> None:
        if self._epoch is None:
            lines = self._mates.gather(self._line)
            if self._place.index == 0:
                self._director.join(lines)
            self._recover()
        elif self._next_epoch > self._epoch.number:
            self._abandon()
            self._recover()
        elif self._todo is None:
            self._todo = self._share(range(self.num_micro_batches))

    def _share(self, micro_batches: Sequence[int]) -> tuple[int, ...]:
        """This replica's part of some micro-batches, by the epoch's weights."""
        weights = {each.replica: each.weight for each in self._in.members if each.replica in self._complete}
        return share_out(micro_batches, weights).get(self._place.replica, ())

    def _settle(self) -> bool:
        """Exchange and vote, and after a failure find out how to go on: whether the step is done."""
        heard: Outcome | None = None
        try:
            heard = self._exchange()
        except (Interrupted, PeerLost) as error:
            self._broken = str(error)
        next_epoch = 0 if heard is None else min(each.next_epoch for each in heard.said.values())
        # Mates step together or not at all, and switch at the same border.
        not_heard, not_next = self._mates.highest(float(heard is None), -float(next_epoch))
        if heard is not None and not not_heard:
            self._next_epoch, self._last_vote = int(-not_next), self._heard
            self._complete = tuple(replica for replica, said in heard.said.items() if said.complete)
            self._finish(heard)
            return True
        self._abandon()
        return self._recover()

    def _exchange(self) -> Outcome:
        used = self._buckets.used()
        self._buckets.flush()
        replicas = [each.replica for each in self._in.members]
        newest = self._director.newest
        said = Said(next_epoch=0 if newest is None else newest.number, complete=self._is_complete)
        place, num = replicas.index(self._place.replica), len(replicas)
        tensor = ballot(self._weight, self._loss, used, said, place=place, num_replicas=num, device=self._device)
        if self._group is not None:
            vote = self._group.start_all_reduce(tensor)
            self._buckets.wait()
            vote.wait()
        self._heard = tuple(tensor.tolist())
        return Outcome.of(self._heard, len(used), replicas)

    def _finish(self, outcome: Outcome) -> None:
        """The step's sums are everywhere: give the loop its gradients."""
        if outcome.weight <= 0.0:
            raise RuntimeError(f"the weights of step {self.step} add up to {outcome.weight}: they must be above 0")
        self._buckets.finish(1.0 / outcome.weight, outcome.used)
        self.loss = outcome.loss / outcome.weight
        self.step += 1
        self._begin_step()

    # ---- epochs

    @property
    def _in(self) -> Epoch:
        assert self._epoch is not None, "a replica that trains is in an epoch"
        return self._epoch

    def _recover(self) -> bool:
        """Go on in the newest epoch; whether the step that this replica is in has been voted."""
        while True:
            number = self._agreed_epoch()
            epoch = self._epoch = self._director.epoch(number)
            self._next_epoch = number
            self._director.entered(epoch)
            voted: bool | None = None
            try:
                voted = self._go_on(self._meet(epoch))
            except (Interrupted, PeerLost) as error:
                self._broken = str(error)
            if not self._mates.highest(float(voted is None))[0]:
                self._broken = ""
                return bool(voted)
            self._abandon()

    def _agreed_epoch(self) -> int:
        """The epoch to be in: the newest that any of the mates has heard of."""
        beyond = 0 if self._epoch is None else self._epoch.number
        newest = self._director.wait(beyond, _BROKEN_SECONDS if self._broken else None)
        if newest is None:
            self._director.failed(self._in, self._broken)
            newest = self._director.wait(beyond)
        assert newest is not None, "without a timeout there is one"
        return int(self._mates.highest(float(newest.number))[0])

    def _meet(self, epoch: Epoch) -> list[Standing]:
        """Build the epoch's groups and hear how far everybody is."""
        founds = any(each.founds and each.replica == self._place.replica for each in epoch.members)
        self._is_complete = self._is_complete or founds
        if self._builder is None:
            return [self._standing()]
        size = self._place.size
        specs = [
            GroupSpec(name=f"{_EXCHANGE}/{index}", ranks=tuple(each.replica * size + index for each in epoch.members))
            for index in range(size)
        ]
        ranks = sorted(rank for spec in specs for rank in spec.ranks)
        told = standing_to_text(self._standing())
        built = self._builder.build(epoch.number, ranks, specs if len(epoch.members) > 1 else (), told)
        self._group = built.groups.get(f"{_EXCHANGE}/{self._place.index}")
        self._buckets.enter(self._group)
        return [standing_from_text(text) for text in built.announced]

    def _standing(self) -> Standing:
        return Standing(
            replica=self._place.replica,
            step=self.step,
            done=tuple(self._done),
            complete=self._is_complete,
            synced=self._is_synced,
            last_vote=self._last_vote,
        )

    def _go_on(self, standings: Sequence[Standing]) -> bool:
        left = [standing_from_text(text) for text in self._in.left]
        settlement = settle(standings, self.num_micro_batches, left)
        self._complete = settlement.complete
        if not all(each.synced for each in standings):
            self._synchronise(standings)
        rest = self._share(settlement.missing)
        if settlement.step == self.step:
            self._todo = rest
            return False
        if not settlement.last_vote:
            raise RuntimeError(
                f"replicas begin at different steps: {self.step} here, {settlement.step} elsewhere; "
                "load the same checkpoint everywhere"
            )
        self._last_vote, self._todo = settlement.last_vote, rest
        self._finish(Outcome.of(settlement.last_vote, len(self._parameters)))
        return True

    def _synchronise(self, standings: Sequence[Standing]) -> None:
        """Everybody begins with the parameters and buffers of one: somebody's who has begun, else of the first."""
        source = min((not each.synced, each.replica) for each in standings if each.complete)[1]
        if self._group is not None:
            with torch.no_grad():
                for tensor in (*self._model.parameters(), *self._model.buffers()):
                    mine = local(tensor.detach()).contiguous()
                    self._group.start_broadcast(mine, source * self._place.size + self._place.index).wait()
                    local(tensor.detach()).copy_(mine)
        self._is_synced = True

    def _abandon(self) -> None:
        """Leave the epoch's groups, pending operations and all."""
        self._buckets.abandon()
        group, self._group = self._group, None
        if group is not None and self._builder is not None:
            self._builder.abandon({group.name: group})
