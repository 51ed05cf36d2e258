"""Probes of links at an iteration border: the same transfer there and back, a few times, over a group of two.

Nobody may wait alone. So a rank that is asked first says at a step vote that it is ready (it is armed); only when a
vote shows that everybody who was asked is, all of them begin the next iteration with their transfers. Two ranks with a
group of their own use it: what keeps a partner away then is what keeps it away from the iteration, and ends in the same
way, the rank parks. Two ranks of a wider group build one beside their work, and are ready once it is there. Not the
wider one: a receive that has to be given up closes a connection that all its members need.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.rank_state import LinkProbe
from evenkeel.trainer_sdk.control.probe import ProbeDesk
from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.devices.matrix_probe import LONGEST_SECONDS
from evenkeel.trainer_sdk.elastic.gradients.step_vote import Armed
from evenkeel.trainer_sdk.elastic.measure.wait_kind import BETWEEN_OPERATIONS
from evenkeel.trainer_sdk.elastic.program.topology import is_idle_between_iterations
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.groups.group import Group

PATIENCE_VOTES = 4
"""An armed probe that not everybody is ready for after so many step votes is given up."""

BUILD_PATIENCE_SECONDS = 5.0
"""But not sooner where groups are built for it: the other link's may take that much longer."""

SIDE_LIMIT_SECONDS = 5.0
"""Transfers in a group that was built for them are given up after so long, and the iteration goes on: a link that is
all but dead holds its job up for no longer, once in each probe."""

_OPERATION = "wait:probe"


@dataclass(slots=True, kw_only=True)
class _Task:
    """A probe that this rank was asked for.

    Attributes:
        link: What was asked.
        ball: What is sent.
        group: The two ranks' own group; None where one is built beside the work.
        side: That one.
        num_votes: Votes at which this rank was ready; 0 while the group is being built.
        ready_since: When it was first, monotonic seconds.
        is_due: Everybody is ready: run it.
        until: When transfers in ``side`` are given up.
    """

    link: LinkProbe
    ball: Tensor
    group: Group | None
    side: Building | None = None
    num_votes: int = 0
    ready_since: float = 0.0
    is_due: bool = False
    until: float = math.inf

    def look(self) -> str:
        """Before a vote: whether this rank is ready; returns why there will be no probe, empty as long as there may."""
        if self.side is not None and self.side.group is None:
            return str(self.side.error or "")
        now = time.monotonic()
        self.ready_since = self.ready_since or now
        self.num_votes += 1
        alone_for_long = self.side is None or now - self.ready_since > BUILD_PATIENCE_SECONDS
        if self.num_votes > PATIENCE_VOTES and alone_for_long:
            return f"somebody else who was asked was not ready within {PATIENCE_VOTES} iterations"
        return ""

    def is_late(self) -> bool:
        """Whether transfers take longer than anybody should wait for them."""
        return time.monotonic() > self.until


class LinkProbes:
    """One rank's probes of links. Training thread only.

    Args:
        desk: Where they are asked for.
        rank: This rank.
        links: Hold back what arrives, where they are emulated.
        device: Where the groups' tensors live.
        progress: Told of the transfers.
        builder: Builds groups beside the work.
    """

    def __init__(
        self,
        desk: ProbeDesk,
        rank: int,
        links: Links,
        device: torch.device,
        progress: ProgressMark,
        builder: GroupBuilder,
    ) -> None:
        self._desk = desk
        self._rank = rank
        self._links = links
        self._device = device
        self._progress = progress
        self._builder = builder
        self._epoch = -1
        self._groups: Mapping[str, Group] = {}
        self._task: _Task | None = None
        desk.serve_links()

    def enter(self, epoch: int, groups: Mapping[str, Group]) -> None:
        """A new epoch's groups are there."""
        self._epoch, self._groups = epoch, groups

    def arm(self) -> int:
        """The id of the probe that this rank is ready for, 0 for none: what it says at the step vote to come."""
        link = self._desk.waiting_link()
        if self._task is not None and self._task.link is not link:
            self._drop()
        if link is None:
            return 0
        why_not = self._take(link) if self._task is None else ""
        task = self._task
        if task is not None:
            why_not = task.look()
        if task is None or why_not:
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
        """Run the probe that everybody is ready for, if there is one; at the start of an iteration.

        Raises:
            WaitBroken: The rank should park.
        """
        task = self._task
        if task is None or not task.is_due:
            return
        task.is_due = False
        group = task.group if task.side is None else task.side.group
        assert group is not None, "a probe is armed only over a group that is there"
        task.until = time.monotonic() + SIDE_LIMIT_SECONDS
        try:
            self._desk.end_link(task.link, seconds=self._transfer(task, group))
        except WaitBroken as error:
            if task.side is None:
                raise
            # Nobody needs this group: whoever should park, or has lost a peer, hears it in the iteration.
            self._desk.end_link(task.link, error=f"given up: {error or 'interrupted, or the partner took too long'}")

    def leave(self) -> None:
        """The groups are given up: nothing that was asked for will be run in them."""
        self._groups = {}
        self._drop()
        link = self._desk.waiting_link()
        if link is not None:
            self._desk.end_link(link, error="not run: the epoch ended, or a peer was lost")

    def _take(self, link: LinkProbe) -> str:
        """Begin with a probe that was asked for; what keeps this rank from it, empty when nothing does."""
        ends = {self._rank, link.partner_rank}
        idle = [self._groups[name] for name in sorted(self._groups) if is_idle_between_iterations(name)]
        shared = [group for group in idle if ends <= set(group.ranks)]
        if not shared:
            return f"ranks {self._rank} and {link.partner_rank} have no group in common in this epoch"
        own = next((group for group in shared if len(group.ranks) == len(ends)), None)
        if own is None and not shared[0].on_cpu:
            return "on an accelerator a group that is built during training could hold up the others"
        try:
            ball = torch.zeros(max(link.num_bytes // 4, 1), device=self._device)
        except (RuntimeError, MemoryError) as error:
            return f"no memory for {link.num_bytes} bytes: {error}"
        self._task = task = _Task(link=link, ball=ball, group=own)
        if own is None:
            low, high = sorted(ends)
            # Another name for each probe: what an attempt that failed has left in the store is nobody's.
            spec = GroupSpec(name=f"probe/{link.probe_id}/{low}-{high}", ranks=(low, high))
            task.side = self._builder.begin(self._epoch, spec, is_over=task.is_late)
        return ""

    def _drop(self) -> None:
        """Forget the probe, and the group that was built for it."""
        task, self._task = self._task, None
        if task is not None and task.side is not None:
            task.side.give_up()

    def _transfer(self, task: _Task, group: Group) -> list[float]:
        """Seconds of each way there and back."""
        self._progress.enter(_OPERATION, group.others)
        begins = self._rank < task.link.partner_rank
        with group.unmeasured():
            seconds = (self._throw if begins else self._return)(group, task.ball, task.link)
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
        going = bool(ball[0])  # on an accelerator, this waits for it
        self._links.hold(group.ranks, ball.nbytes, group.check)
        return going
