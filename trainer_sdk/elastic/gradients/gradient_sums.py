"""One rank's gradient sums of the iteration in progress, the account of what is in them, and their reduction.

Sums are float64 whatever the parameters are: which replica ran which micro-batch then changes the result by less than
the rounding of one float32 backward. A rank's own sums survive the reduction over replicas, and both survive the epoch,
until a step of the next one is voted: after a failure nobody has to repeat what somebody alive still has.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.gradients.exchange import Bucket, Piece, plan_exchange
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, SummedStretch, Tally
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan
from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.elastic.program.topology import collective_name
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.group import Group, Pending


@dataclass(slots=True)
class _Stretch:
    """``[start, stop)`` of a parameter: its sum, the micro-batches that are to run for it, and those that are in it."""

    start: int
    stop: int
    own: Tensor
    due: frozenset[int]
    contains: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Part:
    """A piece that this rank holds: its own sum, stretch by stretch, and once it is there the one over replicas."""

    piece: Piece
    own: Tensor
    reduced: Tensor | None = None
    stretches: list[_Stretch] = field(default_factory=list)


class GradientSums:
    """The gradients of one rank in one epoch. Training thread only.

    Args:
        ownership: Who holds what.
        rank: This rank.
        device: Where gradients live.

    Attributes:
        iteration: Iteration that the sums belong to; -1 before the first.
        losses: Loss of each micro-batch that this rank knows, summed over tokens.
    """

    def __init__(self, ownership: OwnershipMap, rank: int, device: torch.device) -> None:
        self._specs = ownership.specs
        self._held = ownership.held_by(rank)
        self._everything = frozenset(range(ownership.layout.num_micro_batches))
        self._rank = rank
        self._buckets = [bucket for bucket in plan_exchange(ownership) if rank in bucket.ranks]
        self._own = [torch.zeros(each.num_elements, dtype=torch.float64, device=device) for each in self._buckets]
        self._reduced: list[Tensor] = []
        self._parts: dict[str, list[_Part]] = {name: [] for name in self._held}
        for bucket, buffer in zip(self._buckets, self._own, strict=True):
            for piece, own in bucket.views(buffer, self._specs):
                self._parts[piece.name].append(_Part(piece, own))
        for parts in self._parts.values():
            parts.sort(key=lambda part: part.piece.start)
        self._nothing = torch.zeros(0, dtype=torch.float64, device=device)
        self._mix = self._layout_mix = ownership.layout.mix
        self.iteration = -1
        self.losses: dict[int, float] = {}

    def begin(self, iteration: int) -> None:
        """Forget everything: an iteration begins, with all its micro-batches to run."""
        self.iteration = iteration
        self._mix = self._layout_mix
        self.losses = {}
        for own in self._own:
            own.zero_()
        for part in chain.from_iterable(self._parts.values()):
            part.reduced = None
            part.stretches = [_Stretch(part.piece.start, part.piece.stop, part.own, self._everything)]

    def resume(self, plan: SalvagePlan) -> None:
        """Begin an iteration of which some micro-batches are done: :meth:`add` what is kept before the rest runs."""
        self.begin(plan.iteration)
        self._mix = plan.mix
        self.losses = dict(plan.losses)
        for name, parts in self._parts.items():
            for part in parts:
                part.stretches = [
                    _Stretch(gap.start, gap.stop, self.local(name, gap.start, gap.stop), gap.micro_batches)
                    for gap in plan.gaps[name]
                    if part.piece.start <= gap.start and gap.stop <= part.piece.stop
                ]

    def accumulate(self, parameters: Mapping[str, Tensor], micro_batch: int) -> None:
        """Take over one micro-batch's gradients, where they are due, and clear them. Nothing interrupts it.

        Args:
            parameters: Of the stage that it passed.
            micro_batch: Its index.
        """
        for name, parameter in parameters.items():
            gradient, parameter.grad = parameter.grad, None
            axis, first = self._specs[name].cut_axis, self._held[name].start
            for stretch in (stretch for part in self._parts[name] for stretch in part.stretches):
                if micro_batch in stretch.due:
                    assert micro_batch not in stretch.contains, f"{name} counts micro-batch {micro_batch} twice"
                    stretch.contains.add(micro_batch)
                    if gradient is not None:
                        stretch.own += gradient.narrow(axis, stretch.start - first, stretch.stop - stretch.start)

    def add(self, name: str, start: int, stop: int, kept: Tensor, micro_batches: frozenset[int]) -> None:
        """Add a sum of one of the plan's gaps that was kept from before a failure."""
        stretch = next(each for each in self._part(name, start, stop).stretches if each.start == start)
        assert stretch.contains.isdisjoint(micro_batches), f"{name}[{start}:{stop}] counts a micro-batch twice"
        stretch.own += kept.view_as(stretch.own)
        stretch.contains |= micro_batches

    def local(self, name: str, start: int, stop: int) -> Tensor:
        """This rank's own sum of a stretch that lies in one piece: a view."""
        part = self._part(name, start, stop)
        return self._narrow(part, part.own, start, stop)

    def reduce(self, groups: Mapping[str, Group], phases: Phases) -> None:
        """Sum over replicas; afterwards every holder of a piece has the same sum, bit for bit.

        What is reduced when it is interrupted stays reduced: it has every micro-batch, so nobody has to run them again
        for it.

        Args:
            groups: The epoch's by name.
            phases: Told of waits.

        Raises:
            WaitBroken: The rank should park.
        """
        self._reduced = self._reduced or [torch.empty_like(own) for own in self._own]
        started: list[tuple[Bucket, Tensor, Pending | None]] = []
        for bucket, own, buffer in zip(self._buckets, self._own, self._reduced, strict=True):
            buffer.copy_(own)
            for piece, view in bucket.views(buffer, self._specs):
                if self._rank not in piece.contributors:
                    view.zero_()
            alone = len(bucket.ranks) == 1
            pending = None if alone else groups[collective_name(bucket.ranks)].start_all_reduce(buffer)
            started.append((bucket, buffer, pending))
        for bucket, buffer, pending in started:
            if pending is not None:
                phases.waits(WaitKind.GRADIENT, pending.group.others, pending.wait)
            for piece, view in bucket.views(buffer, self._specs):
                self.settle(piece.name, piece.start, piece.stop, view)

    def squared_norm_part(self) -> float:
        """This rank's part of the squared global norm: of each piece, one holder counts it. After :meth:`reduce`."""
        buffers = zip(self._buckets, self._reduced, strict=True)
        return sum((float(buffer.dot(buffer)) for bucket, buffer in buffers if bucket.ranks[0] == self._rank), 0.0)

    def settle(self, name: str, start: int, stop: int, reduced: Tensor) -> None:
        """A piece is reduced over replicas: ``reduced``, which is kept and not copied, has every micro-batch."""
        self._part(name, start, stop).reduced = reduced

    def gradients(self) -> dict[str, Tensor]:
        """The reduced gradients, once all pieces are; views of what was settled where that is one piece."""
        whole = {}
        for name, parts in self._parts.items():
            reduced = [part.reduced for part in parts if part.reduced is not None]
            assert len(reduced) == len(parts), f"{name} is not reduced yet"
            spec = self._specs[name]
            if not reduced:
                reduced = [self._nothing.view(spec.slice_shape(0))]
            whole[name] = reduced[0] if len(reduced) == 1 else torch.cat(reduced, spec.cut_axis)
        return whole

    def has_part_of(self, iteration: int) -> bool:
        """Whether any micro-batch of the iteration is in any sum."""
        return self.iteration == iteration and any(micro_batches for *_, micro_batches in self._entries())

    def ledger(self) -> GradientLedger:
        """What :meth:`read` can give, and of which micro-batches it is the sum."""
        sets: dict[frozenset[int], int] = {}
        stretches = [
            SummedStretch(name, start, stop, sets.setdefault(micro_batches, len(sets)))
            for name, start, stop, micro_batches in self._entries()
        ]
        tally = Tally(iteration=self.iteration, sets=tuple(sets), losses=dict(self.losses), mix=self._mix)
        return GradientLedger(tuple(stretches), tally)

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """The sum of a stretch that lies within one of the ledger's: a view."""
        part = self._part(name, start, stop)
        return self._narrow(part, part.own if part.reduced is None else part.reduced, start, stop)

    def _part(self, name: str, start: int, stop: int) -> _Part:
        """The one that a stretch lies in."""
        return next(part for part in self._parts[name] if part.piece.start <= start and stop <= part.piece.stop)

    def _narrow(self, part: _Part, tensor: Tensor, start: int, stop: int) -> Tensor:
        """A stretch of a part's tensor."""
        return tensor.narrow(self._specs[part.piece.name].cut_axis, start - part.piece.start, stop - start)

    def _entries(self) -> Iterator[tuple[str, int, int, frozenset[int]]]:
        for name, parts in self._parts.items():
            for part in parts:
                if part.reduced is not None:
                    yield name, part.piece.start, part.piece.stop, self._everything
                else:
                    for each in part.stretches:
                        yield name, each.start, each.stop, frozenset(each.contains)
