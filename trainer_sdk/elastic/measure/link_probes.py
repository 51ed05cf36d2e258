"""Probes of links at an iteration border: the same transfer there and back, a few times, over a group of two.

The two ranks build the group beside their work, for this probe alone: a receive that has to be given up closes a
connection, which in a group of the iteration others need. Nobody may wait alone. So a rank whose group is there first
says at a step vote that it is ready (it is armed); only when a vote shows that everybody who was asked is, all of them
begin the next iteration with their transfers.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.trainer_sdk.control.probe import LinkProbe, ProbeDesk
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.devices.matrix_probe import LONGEST_SECONDS
from evenkeel.trainer_sdk.elastic.gradients.step_vote import Armed
from evenkeel.trainer_sdk.elastic.measure.wait_kind import BETWEEN_OPERATIONS
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.groups.group import Group

PATIENCE_VOTES = 4
"""An armed probe that not everybody is ready for after so many step votes is given up."""

BUILD_PATIENCE_SECONDS = 5.0
"""But not sooner: the other link's group may take that much longer to build."""

TRANSFER_LIMIT_SECONDS = 5.0
"""Transfers are given up after so long, and the iteration goes on: a link that is all but dead holds its job up for no
longer, once in each probe."""

_OPERATION = "wait:probe"


@dataclass(slots=True, kw_only=True)
class _Task:
    """A probe that this rank was asked for.

    Attributes:
        link: What was asked.
        ball: What is sent to and fro.
        building: The group of the two ranks.
        num_votes: Votes at which this rank was ready; 0 while the group is being built.
        ready_since: When it was first, monotonic seconds.
        is_due: Everybody is ready: run it.
    """

    link: LinkProbe
    ball: Tensor
    building: Building
    num_votes: int = 0
    ready_since: float = 0.0
    is_due: bool = False

    def look(self) -> str:
        """Before a vote: whether this rank is ready; returns why there will be no probe, empty as long as there may."""
        if self.building.group is None:
            return str(self.building.error or "")
        now = time.monotonic()
        self.ready_since = self.ready_since or now
        self.num_votes += 1
        if self.num_votes > PATIENCE_VOTES and now - self.ready_since > BUILD_PATIENCE_SECONDS:
            return f"somebody else who was asked was not ready within {PATIENCE_VOTES} iterations"
        return ""


class LinkProbes:
    """One rank's probes of links. Training thread only.

    Args:
        desk: Where they are asked for.
        rank: This rank.
        links: Hold back what arrives, where they are emulated.
        progress: Told of the transfers.
        builder: Builds groups beside the work.
    """

    def __init__(self, desk: ProbeDesk, rank: int, links: Links, progress: ProgressMark, builder: GroupBuilder) -> None:
        self._desk = desk
        self._rank = rank
        self._links = links
        self._progress = progress
        self._builder = builder
        self._epoch = -1
        self._task: _Task | None = None
        self._until = math.inf  # when transfers are given up

    def enter(self, epoch: int) -> None:
        """A new epoch begins."""
        self._epoch = epoch

    def arm(self) -> int:
        """The id of the probe that this rank is ready for, 0 for none: what it says at the step vote to come."""
        link = self._desk.waiting_link()
        if self._task is not None and self._task.link is not link:
            self._drop()
        if link is None:
            return 0
        try:
            task = self._task = self._task or self._begin(link)
        except (RuntimeError, MemoryError) as error:
            self._desk.end_link(link, error=f"not run: no memory for {link.num_bytes} bytes: {error}")
            return 0
        if why_not := task.look():
            self._drop()
            self._desk.end_link(link, error=f"not run: {why_not}")
            return 0
        return link.probe_id if task.num_votes else 0

    def heard(self, armed: Armed) -> None:
        """The step vote passed, and these probes were named in it."""
        task = self._task
        if task is not None and armed.agree_on(task.link.probe_id, task.link.num_ranks):
            task.is_due = True

    def run(self) -> None:
        """Run the probe that everybody is ready for, if there is one; at the start of an iteration."""
        task = self._task
        if task is None or not task.is_due:
            return
        task.is_due = False
        group = task.building.group
        assert group is not None, "a probe is armed only over a group that is there"
        self._until = time.monotonic() + TRANSFER_LIMIT_SECONDS
        try:
            self._desk.end_link(task.link, seconds=self._transfer(task.link, task.ball, group))
        except WaitBroken as error:
            # Nobody needs this group: whoever should park, or has lost a peer, hears it in the iteration.
            self._desk.end_link(task.link, error=f"given up: {error or 'interrupted, or the partner took too long'}")

    def leave(self) -> None:
        """The epoch is over: nothing that was asked for in it will be run."""
        self._drop()
        link = self._desk.waiting_link()
        if link is not None:
            self._desk.end_link(link, error="not run: the epoch ended, or a peer was lost")

    def _begin(self, link: LinkProbe) -> _Task:
        """Begin with a probe that was asked for."""
        ball = torch.zeros(max(link.num_bytes // 4, 1))
        low, high = sorted((self._rank, link.partner_rank))
        # Another name for each probe: what an attempt that failed has left in the store is nobody's.
        spec = GroupSpec(name=f"probe/{link.probe_id}/{low}-{high}", ranks=(low, high))
        self._until = math.inf
        building = self._builder.begin(self._epoch, spec, is_over=lambda: time.monotonic() > self._until)
        return _Task(link=link, ball=ball, building=building)

    def _drop(self) -> None:
        """Forget the probe, and the group that was built for it."""
        task, self._task = self._task, None
        if task is not None:
            task.building.give_up()

    def _transfer(self, link: LinkProbe, ball: Tensor, group: Group) -> list[float]:
        """Seconds of each way there and back."""
        self._progress.enter(_OPERATION, group.others)
        begins = self._rank < link.partner_rank
        seconds = (self._throw if begins else self._return)(group, ball, link)
        self._progress.enter(BETWEEN_OPERATIONS)
        return seconds

    def _throw(self, group: Group, ball: Tensor, link: LinkProbe) -> list[float]:
        """Begins each way; the partner says with each answer whether there is another."""
        seconds = []
        going = True
        while going:
            started = time.perf_counter()
            group.start_broadcast(ball, self._rank).wait()
            going = self._receive(group, ball, link.partner_rank)
            seconds.append(time.perf_counter() - started)
        return seconds[1:]  # during the first one the partner may still have been on its way here

    def _return(self, group: Group, ball: Tensor, link: LinkProbe) -> list[float]:
        """Answers each way, until there are enough or they have taken long: everybody waits for probed ranks."""
        self._receive(group, ball, link.partner_rank)
        began = time.perf_counter()
        seconds: list[float] = []
        while True:
            started = time.perf_counter()
            going = len(seconds) + 1 < link.repetitions and started - began < LONGEST_SECONDS
            ball[0] = going
            group.start_broadcast(ball, self._rank).wait()
            if not going:
                return seconds
            self._receive(group, ball, link.partner_rank)
            seconds.append(time.perf_counter() - started)

    def _receive(self, group: Group, ball: Tensor, source_rank: int) -> bool:
        group.start_broadcast(ball, source_rank).wait()
        going = bool(ball[0])
        self._links.hold(group.ranks, ball.nbytes, group.check)
        return going
