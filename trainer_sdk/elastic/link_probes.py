"""Probes of links at an iteration border: the same transfer there and back, a few times, over a group of two.

Nobody may wait alone. So a rank that is asked first says at a step vote that it is ready (it is armed); only when a
vote shows that everybody who was asked is, all of them begin the next iteration with their transfers. What keeps a
partner away after that is what keeps it away from the iteration, and ends in the same way: the rank parks.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from trainer_sdk.control.probe import LinkProbe, ProbeDesk
from trainer_sdk.devices.links import Links
from trainer_sdk.devices.matrix_probe import LONGEST_SECONDS
from trainer_sdk.elastic.step_vote import Armed
from trainer_sdk.elastic.topology import is_idle_between_iterations
from trainer_sdk.emit.progress import ProgressMark
from trainer_sdk.groups.group import Group

PATIENCE_VOTES = 4
"""An armed probe that not everybody is ready for after so many step votes is given up."""

_OPERATION = "wait:probe"


class LinkProbes:
    """One rank's probes of links. Training thread only.

    Args:
        desk: Where they are asked for.
        rank: This rank.
        links: Hold back what arrives, where they are emulated.
        device: Where the groups' tensors live.
        progress: Told of the transfers.
    """

    def __init__(self, desk: ProbeDesk, rank: int, links: Links, device: torch.device, progress: ProgressMark) -> None:
        self._desk = desk
        self._rank = rank
        self._links = links
        self._device = device
        self._progress = progress
        self._groups: Mapping[str, Group] = {}
        self._armed: LinkProbe | None = None
        self._num_votes = 0
        self._due: LinkProbe | None = None
        self._ball: Tensor | None = None
        desk.serve_links()

    def enter(self, groups: Mapping[str, Group]) -> None:
        """A new epoch's groups are there."""
        self._groups = groups

    def arm(self) -> int:
        """The id of the probe that this rank is ready for, 0 for none: what it says at the step vote to come."""
        link = self._desk.waiting_link()
        if link is not self._armed:
            self._armed, self._num_votes, self._ball = link, 0, None
        if link is None:
            return 0
        self._num_votes += 1
        why_not = self._why_not(link)
        if why_not:
            self._desk.end_link(link, error=f"not run: {why_not}")
            self._armed, self._ball = None, None
            return 0
        return link.probe_id

    def heard(self, armed: Armed) -> None:
        """The step vote passed, and these probes were named in it."""
        link = self._armed
        if link is not None and armed.agree_on(link.probe_id, link.num_ranks):
            self._armed, self._due = None, link

    def run(self) -> None:
        """Run the probe that everybody is ready for, if there is one; at the start of an iteration.

        Raises:
            Interrupted: The rank should park.
            PeerLost: The partner is gone.
        """
        link = self._due
        if link is None:
            return
        group = self._group_with(link.partner_rank)
        assert group is not None, "a probe is armed only over a group that is there"
        assert self._ball is not None, "a probe is armed only with something to send"
        self._progress.enter(_OPERATION, group.others)
        begins = self._rank < link.partner_rank
        with group.unmeasured():
            seconds = (self._throw if begins else self._return)(group, self._ball, link)
        self._due, self._ball = None, None
        self._desk.end_link(link, seconds=seconds)

    def leave(self) -> None:
        """The groups are given up: nothing that was asked for will be run in them."""
        self._groups, self._armed, self._due, self._ball = {}, None, None, None
        link = self._desk.waiting_link()
        if link is not None:
            self._desk.end_link(link, error="not run: the epoch ended, or a peer was lost")

    def _why_not(self, link: LinkProbe) -> str:
        """What keeps this rank from being ready; empty when nothing does."""
        if self._num_votes > PATIENCE_VOTES:
            return f"somebody else who was asked was not ready within {PATIENCE_VOTES} iterations"
        if self._group_with(link.partner_rank) is None:
            return f"ranks {self._rank} and {link.partner_rank} have no group of their own in this epoch"
        if self._ball is None:
            try:
                self._ball = torch.zeros(max(link.num_bytes // 4, 1), device=self._device)
            except (RuntimeError, MemoryError) as error:
                return f"no memory for {link.num_bytes} bytes: {error}"
        return ""

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

    def _group_with(self, partner_rank: int) -> Group | None:
        ends = {self._rank, partner_rank}
        names = sorted(name for name in self._groups if is_idle_between_iterations(name))
        return next((self._groups[name] for name in names if set(self._groups[name].ranks) == ends), None)
