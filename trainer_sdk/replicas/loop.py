"""A training loop's part in a job of replicas: steps that happen on all replicas or on none, whoever dies.

A step: local sums, the exchange in the last backward, the vote behind it; after a failure whoever is left keeps its
sums, runs what is in nobody's, and exchanges again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from evenkeel.trainer_sdk.emit.farewell import ending_error
from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.replicas.buckets import Buckets, local
from evenkeel.trainer_sdk.replicas.epochs import Epochs
from evenkeel.trainer_sdk.replicas.samples import noise_seed
from evenkeel.trainer_sdk.replicas.shares import Settlement, Standing, settle, standing_from_text, standing_to_text
from evenkeel.trainer_sdk.replicas.state.catch_up import CatchUp
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState
from evenkeel.trainer_sdk.replicas.vote import Outcome, Said, ballot, is_compared

Batches = Callable[[int, int], Any]
"""The batch of (step, micro-batch): the same whoever asks, and how often."""


class Replicas:
    """This process's part. Training thread only.

    Args:
        parameters: Those that are trained; every replica has the same in the same order.
        state: What a newcomer needs of it.
        epochs: Whom it trains with.
        num_micro_batches: Of a step, over all replicas.
        seed: Of the noise in micro-batches.

    Attributes:
        step: Steps that this replica has finished.
        loss: Mean loss over all micro-batches of the newest step.
        num_micro_batches: Of a step.
        has_begun: It has met the others, and is in their step.
        is_complete: False in a newcomer without the whole state: its parameters are of no use yet.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        state: TrainingState,
        epochs: Epochs,
        *,
        num_micro_batches: int,
        seed: int = 0,
    ) -> None:
        self.step = 0
        self.loss = float("nan")
        self.num_micro_batches = num_micro_batches
        self._state = state
        self._epochs = epochs
        self._seed = seed
        self._buckets = Buckets(parameters)
        self._device = local(parameters[0]).device
        self._complete: tuple[int, ...] = ()
        self.is_complete = self.has_begun = self._is_open = self._is_on_trial = False
        self._proven: tuple[int, ...] = ()  # of those that are complete; the others are compared at the next vote
        self._catch_up = CatchUp(state, epochs)
        self._todo: tuple[int, ...] | None = None  # None = the epoch's share
        self._heard = self._last_vote = tuple[float, ...]()
        self._begin_sums()

    # ---- what a loop calls

    @property
    def is_first(self) -> bool:
        """Of those that hold the whole state it has the lowest number: it saves, the others need not."""
        return self.is_complete and self._epochs.place.replica == min(self._complete)

    def begin(self) -> None:
        """Meet the others, and be at the step that they are in; the first micro-batch does it, if nothing has."""
        if not self.has_begun:
            self._state.check()
            self._epochs.join()
            self._recover()

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
                torch.manual_seed(noise_seed(self._seed, self.step, index))
                self._owes_backward = True
                yield batches(self.step, index)
                if self._owes_backward or self._is_in_backward:
                    raise RuntimeError(
                        "call run.backward(loss) once for each micro-batch: it was not called, or failed"
                    )
                self._done.append(index)
            if self._settle():
                break
        # What a loop draws between steps is the same everywhere too, whoever ran which micro-batches.
        torch.manual_seed(noise_seed(self._seed, self.step, self.num_micro_batches))
        self._is_open = False

    def backward(self, loss: Tensor, weight: float = 1.0) -> None:
        """Add a micro-batch's gradients to the step's.

        Args:
            loss: A scalar.
            weight: Its part of the step's mean, for example its tokens where the loss is their mean: of none it is NaN,
                and counts nothing. A replica of several ranks computes it all the same, so there it must be finite.

        Raises:
            RuntimeError: No micro-batch waits for its backward, or the gradients of earlier ones are gone.
            ValueError: A loss of weight 0 would make gradients NaN.
        """
        self._buckets.check_sums()
        if not weight and self._epochs.place.size > 1 and not loss.isfinite():
            raise ValueError("mates need the backward of a loss of weight 0: divide it by num_tokens.clamp(min=1)")
        self.add(loss.detach().double() * weight if weight else torch.zeros_like(loss), weight)
        self._is_in_backward = True
        if weight or self._epochs.place.size > 1:  # mates may need one another's backward
            (loss if weight == 1.0 else loss * weight).backward()  # type: ignore[no-untyped-call]
        self._is_in_backward = False

    def add(self, loss: Tensor, weight: float) -> None:
        """Count a micro-batch whose backward is somebody else's call; its gradients must be those of ``loss``.

        Args:
            loss: A scalar, multiplied by its weight.
            weight: Its part of the step's mean.

        Raises:
            RuntimeError: No micro-batch waits for its backward.
        """
        if not self._owes_backward:
            raise RuntimeError("call run.backward(loss) once for each micro-batch of run.micro_batches(...)")
        self._owes_backward = False
        self._weight += weight
        self._loss += loss.detach().double()

    def close(self) -> None:
        """Go away in order: whoever has not heard of the newest step learns it from what this leaves behind.

        Raises:
            Evicted: Another rank of this replica is gone.
        """
        standing = standing_to_text(replace(self._standing(), done=())) if self.has_begun else ""
        self._state.optimizers.let_go()
        self._epochs.leave(standing, ending_error(), in_order=not self._is_open)

    # ---- a step

    def _begin_sums(self) -> None:
        self._owes_backward = self._is_in_backward = False
        self._done: list[int] = []
        self._weight = 0.0
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)

    def _enter_step(self) -> None:
        self.begin()
        self._epochs.take_plans()
        if self._epochs.is_due:
            self._recover()
        elif self._todo is None:
            self._todo = self._epochs.share(range(self.num_micro_batches), self._proven or self._complete)
        self._buckets.open()
        self._state.open()
        self._catch_up.begin(self.step)

    def _settle(self) -> bool:
        """Exchange and vote, and after a failure find out how to go on: whether the step is done."""
        heard: Outcome | None = None
        try:
            heard = self._exchange()
        except WaitBroken as error:
            self._epochs.broke(error)
        if self._epochs.agree(heard):
            assert heard is not None, "mates agree on what each of them has heard"
            self._last_vote = self._heard
            if self.is_complete:
                here = self._epochs.place.replica
                heard.check_alike(here, self._proven, self.step)
                self._is_on_trial &= here not in set(self._complete).difference(self._proven)
            before = self._complete
            self._complete = tuple(replica for replica, said in heard.said.items() if said.complete)
            self._proven = tuple(each for each in self._complete if each in before)
            self._finish(heard)
            return True
        return self._recover()

    def _exchange(self) -> Outcome:
        self._buckets.check_sums()
        used = self._buckets.used()
        self._buckets.flush()
        said = {newcomer: Said(num_units=num_units) for newcomer, num_units in self._catch_up.pause().items()}
        sample = self._state.sample() if self._proven != self._complete or is_compared(self.step) else 0.0
        mine = Said(self._epochs.newest, self.is_complete, settings=self._state.optimizers.settings, sample=sample)
        said[self._epochs.place.replica] = mine
        replicas = [each.replica for each in self._epochs.epoch.members]
        tensor = ballot(self._weight, self._loss, used, [said.get(each, Said()) for each in replicas])
        group = self._epochs.group
        if group is not None:
            vote = group.start_all_reduce(tensor)
            with self._epochs.waiting(f"step {self.step}"):
                self._buckets.wait()
                vote.wait()
        self._heard = tuple(tensor.tolist())
        return Outcome.of(self._heard, len(used), replicas)

    def _finish(self, outcome: Outcome) -> None:
        """The step's sums are everywhere: give the loop its gradients."""
        if outcome.weight <= 0.0:
            raise RuntimeError(f"the weights of step {self.step} add up to {outcome.weight}: they must be above 0")
        if not any(outcome.used):
            raise RuntimeError(f"no gradient in step {self.step}: train what run.replicate() was given, and no copy")
        self._buckets.finish(1.0 / outcome.weight, outcome.used)
        self._state.close()
        if not self.is_complete:
            said = outcome.said.get(self._epochs.place.replica)
            self.is_complete = self._catch_up.install(self.step, None if said is None else int(said.num_units))
        self.loss = outcome.loss / outcome.weight
        self.step += 1
        self._begin_sums()

    # ---- epochs

    def _recover(self) -> bool:
        """Leave the epoch's groups, pending operations and all, for the newest one's."""
        self._buckets.abandon()
        self._catch_up.give_up()
        self._epochs.abandon()
        return self._epochs.enter(self._standing, self._go_on)

    def _standing(self) -> Standing:
        kept = ", ".join(type(each).__name__ for each in self._state.kept) or "nothing"
        return Standing(
            replica=self._epochs.place.replica,
            index=self._epochs.place.index,
            step=self.step,
            done=tuple(self._done),
            complete=self.is_complete or self._epochs.founds,
            on_trial=self._is_on_trial,
            synced=self.has_begun,
            num_units=self._state.num_held,
            model=f"{self._state.signature}, {self.num_micro_batches} micro-batches, kept {kept}",
            last_vote=self._last_vote,
        )

    def _go_on(self, standings: Sequence[Standing]) -> bool:
        """Whether the step that this replica is in has been voted.

        Raises:
            WaitBroken: The epoch is over before all is in place.
        """
        settlement = settle(standings, self.num_micro_batches, map(standing_from_text, self._epochs.epoch.left))
        self._complete = self._proven = settlement.proven
        self._buckets.enter(self._epochs.group)
        if any(each.complete and not each.synced for each in standings):
            source = min((not each.synced, each.replica) for each in standings if each.complete)[1]
            self._state.synchronise(self._epochs.group, source * self._epochs.place.size + self._epochs.place.index)
        self._begin(settlement)
        self._catch_up.connect(standings, settlement.complete)
        self._todo = self._epochs.share(settlement.missing, self._complete)
        if settlement.step == self.step:
            return False
        if not settlement.last_vote:
            raise RuntimeError(
                f"replicas begin at different steps: {self.step} here, {settlement.step} elsewhere; "
                "load the same checkpoint everywhere"
            )
        self._last_vote = settlement.last_vote
        self._finish(Outcome.of(settlement.last_vote, len(self._buckets.used())))
        return True

    def _begin(self, settlement: Settlement) -> None:
        if self.has_begun:
            return
        self.has_begun = True
        self.is_complete = self._epochs.place.replica in settlement.complete
        if not self.is_complete:
            self._is_on_trial = True
            self._state.forget()
            self.step, self._last_vote = settlement.step, settlement.last_vote
