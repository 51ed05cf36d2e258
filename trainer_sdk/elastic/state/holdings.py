"""What a rank holds of the job, by epoch: slices, and gradient sums of an iteration that is not over.

Those of an older epoch stay until the first step of a newer one is voted, so that a failure in the middle of a reshape
is one more recovery from the newest epoch that all survivors hold completely.
"""

import logging

from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState

_log = logging.getLogger(__name__)


class Holdings:
    """One rank's. Training thread only.

    Args:
        rank: This rank.
        copies: Have its own slices of earlier steps.
    """

    def __init__(self, rank: int, copies: PeerCopies) -> None:
        self._rank = rank
        self._copies = copies
        self._states: dict[int, ShardState] = {}
        self._sums: dict[int, GradientSums] = {}

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs whose slices are held, ascending."""
        return tuple(sorted(self._states))

    def __getitem__(self, epoch: int) -> ShardState:
        """The slices of an epoch that is held."""
        return self._states[epoch]

    def begin(self, state: ShardState) -> None:
        """The first epoch of this process."""
        self._states = {state.epoch: state}

    def readable(self, commit: Commit) -> tuple[ShardState | None, GradientSums | None]:
        """The slices and sums that a plan's ranks may read from this one."""
        if self._rank not in commit.sources or commit.from_epoch not in self._states:
            return None, None
        return self._states[commit.from_epoch], self._sums.get(commit.from_epoch)

    def follow(self, commit: Commit, state: ShardState) -> None:
        """Take up the slices of a plan's epoch; beside them only what it was read from stays."""
        source, sums = self.readable(commit)
        self._states = {} if source is None else {source.epoch: source}
        self._states[state.epoch] = state
        self._sums = {commit.from_epoch: sums} if sums is not None and sums.iteration == state.steps_applied else {}

    def take_sums(self, epoch: int, sums: GradientSums) -> None:
        """The sums that an epoch goes on with."""
        self._sums[epoch] = sums

    def settle(self, epoch: int) -> bool:
        """A step of this epoch is voted, so nothing older is needed. Returns whether there was something older."""
        if len(self._states) == 1:
            return False
        self._states, self._sums = {epoch: self._states[epoch]}, {epoch: self._sums[epoch]}
        return True

    def go_back(self, commit: Commit) -> None:
        """Go back to this rank's own slices of the plan's step, which are there.

        Whatever is held of other epochs goes: a rank says one step of all that it holds.
        """
        earlier = self._copies.own_state(commit.from_epoch, commit.steps_applied)
        _log.warning("rank %d goes back to step %d", self._rank, commit.steps_applied)
        self._states = {commit.from_epoch: earlier}
        self._sums = {epoch: sums for epoch, sums in self._sums.items() if epoch == commit.from_epoch}

    def forget(self) -> None:
        """An epoch without this rank has voted: nobody needs what it holds."""
        self._states, self._sums = {}, {}
