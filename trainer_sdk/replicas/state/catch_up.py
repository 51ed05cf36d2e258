"""A newcomer gets the state while the others train: unit by unit, from one of them, in no hurry.

Parameters and moments do not change between a step's beginning and its vote, so that is when a donor sends them, as
they are. The newcomer is in every exchange with gradients of zero, hears all reduced gradients, and steps what it
holds already. Each vote says how many units were sent before it: those a newcomer must have when it steps.
"""

from collections.abc import Sequence

from evenkeel.trainer_sdk.replicas.epochs import Epochs
from evenkeel.trainer_sdk.replicas.shares import Standing
from evenkeel.trainer_sdk.replicas.state.donor import Donor
from evenkeel.trainer_sdk.replicas.state.newcomer import Newcomer
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState


class CatchUp:
    """A rank's part in all catching up of an epoch. Training thread.

    Args:
        state: This rank's state.
        epochs: Whom it trains with.
    """

    def __init__(self, state: TrainingState, epochs: Epochs) -> None:
        self._state = state
        self._epochs = epochs
        self._donors: dict[int, Donor] = {}  # by the newcomer's replica
        self._newcomer: Newcomer | None = None

    def connect(self, standings: Sequence[Standing], complete: Sequence[int]) -> None:
        """A new epoch: each newcomer gets a donor, who sends it what it does not have yet."""
        place = self._epochs.place
        newcomers = {each.replica: each for each in standings if each.index == place.index}
        for number, replica in enumerate(sorted(set(newcomers).difference(complete))):
            giver = complete[number % len(complete)]
            if place.replica not in (giver, replica):
                continue
            side, rank = self._epochs.side(giver, replica), giver * place.size + place.index
            if place.replica == giver:
                first = newcomers[replica].num_units if newcomers[replica].synced else 0
                self._donors[replica] = Donor(side, rank, self._state, first, self._epochs.check)
            else:
                self._newcomer = Newcomer(side, rank, self._state)

    def begin(self, step: int) -> None:
        """Parameters stay as they are until :meth:`pause`."""
        for donor in self._donors.values():
            donor.begin(step)

    def pause(self) -> dict[int, int]:
        """Parameters may change when this returns: what was sent, by the newcomer's replica.

        Raises:
            Interrupted: The epoch is over.
        """
        return {replica: donor.pause() for replica, donor in self._donors.items()}

    def install(self, step: int, num_sent: int | None) -> bool:
        """In a newcomer, see :meth:`Newcomer.install`; whether its replica holds the whole state now."""
        assert self._newcomer is not None, "whoever does not hold the whole state has a donor"
        self._newcomer.install(step, num_sent)
        return self._epochs.all_mates(self._state.num_held == self._state.num_units)

    def give_up(self) -> None:
        """The epoch is over; what has arrived and is not installed is sent again. Returns at once."""
        for donor in self._donors.values():
            donor.give_up()
        self._donors = {}
        if self._newcomer is not None:
            self._newcomer.give_up()
            self._newcomer = None
