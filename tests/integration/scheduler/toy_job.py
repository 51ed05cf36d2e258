"""A job whose ranks are threads with the real controller (gRPC server and mailbox) and a toy training loop.

The loop does what the engine does at its safe points (step vote, boundary, park, rendezvous) without any model, so that
the protocol between scheduler and ranks is the real one.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.control.tls import ControllerTls

_ITERATION_SECONDS = 0.01


class Fabric:
    """What process groups are to real ranks: all-gathers that end early when a member is told to stop waiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gathers: dict[tuple[object, ...], dict[int, int]] = {}

    def all_gather(
        self, key: tuple[object, ...], members: tuple[int, ...], rank: int, value: int, stop: Callable[[], bool]
    ) -> dict[int, int] | None:
        """Everybody's value, or None when ``stop`` says so before all are there."""
        with self._changed:
            gathered = self._gathers.setdefault(key, {})
            gathered[rank] = value
            self._changed.notify_all()
            while len(gathered) < len(members):
                if stop():
                    gathered.pop(rank, None)  # whoever leaves has not voted: nobody may count on it and go on
                    return None
                self._changed.wait(0.005)
            return dict(gathered)


class ToyRank:
    """One process of a rank, as a thread."""

    def __init__(self, job: "ToyJob", rank: int, incarnation: int = 0) -> None:
        self.job, self.rank, self.incarnation = job, rank, incarnation
        self.mailbox = Mailbox(rank=rank, incarnation=incarnation)
        self.server = ControlServer(
            self.mailbox, job_id=job.job_id, job_token=job.token, tls=job.tls, can_reshape=job.can_reshape
        )
        self.epoch, self.steps, self.held = -1, 0, ()
        self.layout: Layout | None = None
        self.hanging = threading.Event()
        self.hold_rendezvous = threading.Event()
        self.dead = threading.Event()
        self.history: list[tuple[int, int]] = []
        self.probe_seconds = 0.004
        self.checkpoint_steps: tuple[int, ...] = ()
        self.mailbox.probes.serve_links()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if self.incarnation == 0:
            self.epoch, self.held, self.layout = 0, (0,), self.job.home
        self._publish(RankPhase.JOINING if self.layout is None else RankPhase.TRAINING)
        self.server.start()
        self._thread.start()

    def kill(self) -> None:
        """As kill -9: the controller is gone, peers wait in vain."""
        self.dead.set()
        self.server.stop(grace_seconds=0)
        self._thread.join(5)

    def say_done(self) -> None:
        """As at the end of a loop: the work is done, and the controller says so."""
        self.dead.set()
        self._thread.join(5)
        self._publish(RankPhase.FINISHED)

    def see_checkpoints(self, *steps: int) -> None:
        """Checkpoints of these steps are on disk now."""
        self.checkpoint_steps = steps
        self.mailbox.publish(replace(self.mailbox.state, checkpoint_steps=steps))

    def _publish(self, phase: RankPhase, voted: bool = False) -> None:
        self.mailbox.publish(
            RankState(
                rank=self.rank,
                incarnation=self.incarnation,
                phase=phase,
                epoch=self.epoch,
                iteration=self.steps,
                steps_applied=self.steps,
                voted=voted,
                held_epochs=self.held,
                checkpoint_steps=self.checkpoint_steps,
            )
        )

    def _stop(self) -> bool:
        return self.dead.is_set() or self.mailbox.interrupted()

    def _run(self) -> None:
        while not self.dead.is_set():
            if self.mailbox.leaving():
                self._publish(RankPhase.FINISHED)
                return
            if self.layout is None or self.mailbox.interrupted():
                self._publish(RankPhase.JOINING if self.layout is None else RankPhase.PARKED)
                with self.mailbox.switching(timeout_seconds=0.02) as commit:
                    if commit is not None:
                        self._apply(commit)
            else:
                self._iterate(self.layout)

    def _iterate(self, layout: Layout) -> None:
        self.dead.wait(_ITERATION_SECONDS)
        self.mailbox.probes.serve(lambda _, repetitions: [self.probe_seconds] * repetitions)
        if (link := self.mailbox.probes.waiting_link()) is not None:
            ends = frozenset((self.rank, link.partner_rank))
            self.mailbox.probes.end_link(link, seconds=[self.job.link_seconds.get(ends, 0.001)] * link.repetitions)
        while self.hanging.is_set() and not self.dead.is_set() and not self.mailbox.leaving():
            self.dead.wait(0.01)
        if self._stop():
            return
        votes = self.job.fabric.all_gather(
            ("vote", self.epoch, self.steps), layout.ranks, self.rank, self.mailbox.committed_epoch(), self._stop
        )
        if votes is None:
            return
        self.history.append((self.epoch, self.steps))
        self.steps += 1
        self.held = (self.epoch,)
        self._publish(RankPhase.TRAINING)
        if min(votes.values()) > self.epoch:
            with self.mailbox.switching(min(votes.values())) as commit:
                if commit is not None:
                    self._apply(commit)

    def _apply(self, commit: Commit) -> None:
        reshape = commit.reshape
        members = reshape.to_layout.ranks
        if commit.steps_applied >= 0 and self.rank in commit.sources:
            assert self.steps in (commit.steps_applied, commit.steps_applied - 1)
        if self.rank not in members:
            self.layout, self.epoch, self.held = None, reshape.epoch, ()
            self._publish(RankPhase.JOINING)
            return
        while self.hold_rendezvous.is_set() and not self._stop():
            self.dead.wait(0.005)
        if self.dead.is_set():
            return
        steps = commit.steps_applied if commit.steps_applied >= 0 else self.steps
        gathered = self.job.fabric.all_gather(("build", reshape.epoch), members, self.rank, steps, self._stop)
        if gathered is None:
            return
        self.steps = max(gathered.values())
        self.held = (*(e for e in self.held if e == commit.from_epoch), reshape.epoch)
        self.epoch, self.layout = reshape.epoch, reshape.to_layout
        self._publish(RankPhase.TRAINING)


class ToyJob:
    """A job of toy ranks."""

    def __init__(
        self,
        job_id: str,
        home: Layout,
        token: str = "a-token-of-this-toy-job",
        tls: ControllerTls | None = None,
        *,
        can_reshape: bool = True,
    ) -> None:
        self.job_id, self.home, self.token, self.tls, self.can_reshape = job_id, home, token, tls, can_reshape
        self.fabric = Fabric()
        self.link_seconds: dict[frozenset[int], float] = {}
        self.ranks: dict[int, ToyRank] = {rank: ToyRank(self, rank) for rank in home.ranks}

    def start(self) -> None:
        for rank in self.ranks.values():
            rank.start()

    def replace(self, rank: int) -> ToyRank:
        """A later process of a rank."""
        newer = ToyRank(self, rank, self.ranks[rank].incarnation + 1)
        self.ranks[rank] = newer
        newer.start()
        return newer

    def stop(self) -> None:
        for rank in self.ranks.values():
            rank.kill()
