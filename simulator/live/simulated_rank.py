"""One rank of a job that does not exist: the SDK's mailbox, and what the engine's state would be."""

from contextlib import ExitStack

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.state import Commit

PROBE_SECONDS_PER_CUBE = 2e-13
"""A probe's matrix product takes size cubed times this on a healthy device: some 10 TFLOP/s."""


class SimulatedRank:
    """State of one process of a rank. Everything but the mailbox belongs to the job's loop.

    Args:
        rank: Rank.
        incarnation: Which process of the rank.
        home: Layout that it has from the start; None for a replacement, which joins by a plan.
    """

    def __init__(self, rank: int, incarnation: int, home: Layout | None) -> None:
        self.rank, self.incarnation = rank, incarnation
        self.mailbox = Mailbox(rank, incarnation)
        self.num_operations = 0
        self.commit: Commit | None = None
        self._switch = ExitStack()
        self._epoch = -1 if home is None else 0
        self._held: tuple[int, ...] = () if home is None else (0,)
        self.holds_position = home is not None
        self.publish(RankPhase.TRAINING if home is not None else RankPhase.JOINING, steps=0)

    @property
    def waits(self) -> bool:
        """True when it takes commits: it is parked, or has no position."""
        return self.mailbox.state.phase in {RankPhase.PARKED, RankPhase.JOINING}

    def publish(self, phase: RankPhase, *, steps: int) -> None:
        """Report a phase after so many steps."""
        self.mailbox.publish(
            RankState(
                rank=self.rank,
                incarnation=self.incarnation,
                phase=phase,
                epoch=self._epoch,
                iteration=steps,
                steps_applied=steps,
                held_epochs=self._held,
            )
        )

    def park(self, *, steps: int) -> None:
        """Give up the iteration and wait for a plan; a commit that could not be applied has failed."""
        self._leave()
        self.publish(RankPhase.PARKED if self.holds_position else RankPhase.JOINING, steps=steps)

    def look(self, epoch: int | None = None) -> None:
        """Take a commit that waits, if this rank is at a place where it may; of a boundary the one that was voted."""
        if self.commit is None and (epoch is not None or self.waits):
            self.commit = self._switch.enter_context(self.mailbox.switching(epoch))
            if self.commit is None:
                self._switch.close()

    def apply(self, epoch: int, *, holds_position: bool, steps: int) -> None:
        """The rank runs an epoch now, or has left the layout with it."""
        self.holds_position, self._epoch = holds_position, epoch
        self._held = (epoch,) if holds_position else ()
        self.publish(RankPhase.TRAINING if holds_position else RankPhase.JOINING, steps=steps)
        self._leave()

    def _leave(self) -> None:
        self.commit = None
        self._switch.close()

    def serve_probe(self, throughput: float) -> None:
        """Answer a probe as a device of that speed would."""

        def run(size: int, repetitions: int) -> list[float]:
            return [PROBE_SECONDS_PER_CUBE * size**3 / throughput] * repetitions

        self.mailbox.probes.serve(run)
