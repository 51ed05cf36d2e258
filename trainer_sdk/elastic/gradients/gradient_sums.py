"""One rank's gradient sums of the iteration in progress, the account of what is in them, and their reduction.

Sums are float64 whatever the parameters are: which replica ran which micro-batch then changes the result by less than
the rounding of one float32 backward. A rank's own sums survive the reduction over replicas, and both survive the epoch,
until a step of the next one is voted: after a failure nobody has to repeat what somebody alive still has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.gradients.exchange import Bucket, Piece
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, SummedStretch, Tally
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan
from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.elastic.program.topology import collective_name
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.group import Group, Pending


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """``[start, stop)`` of a parameter: what is in it, and of a resumed iteration what still belongs into it."""

    start: int
    stop: int
    due: frozenset[int] | None = None
    contains: set[int] = field(default_factory=set)

    def wants(self, micro_batch: int) -> bool:
        return self.due is None or micro_batch in self.due


class GradientSums:
    """The gradients of one rank in one epoch. Training thread only.

    Args:
        ownership: Who holds what.
        rank: This rank.
        buckets: All buckets of the layout, bucket by bucket reduced over its ranks.
        device: Where gradients live.

    Attributes:
        iteration: Iteration that the sums belong to; -1 before the first.
        losses: Loss of each micro-batch that this rank knows, summed over tokens.
    """

    def __init__(self, ownership: OwnershipMap, rank: int, buckets: Sequence[Bucket], device: torch.device) -> None:
        self._specs = ownership.specs
        self._held = ownership.held_by(rank)
        self._everything = frozenset(range(ownership.layout.num_micro_batches))
        self._local: dict[str, Tensor] = {
            name: torch.zeros(self._specs[name].slice_shape(len(held)), dtype=torch.float64, device=device)
            for name, held in self._held.items()
        }
        self._rank = rank
        self._device = device
        self._buckets = [bucket for bucket in buckets if rank in bucket.ranks]
        self._buffers: list[Tensor] = []
        self._pieces: dict[str, list[tuple[int, int]]] = {name: [] for name in self._held}
        for piece in (piece for bucket in self._buckets for piece in bucket.pieces):
            self._pieces[piece.name].append((piece.start, piece.stop))
        for pieces in self._pieces.values():
            pieces.sort()
        self._stretches: dict[str, list[_Stretch]] = {}
        self._reduced: dict[tuple[str, int, int], Tensor] = {}
        self._mix = self._layout_mix = ownership.layout.mix
        self.iteration = -1
        self.losses: dict[int, float] = {}

    def begin(self, iteration: int) -> None:
        """Forget everything: an iteration begins, with all its micro-batches to run."""
        self.iteration = iteration
        self._mix = self._layout_mix
        self.losses = {}
        self._reduced.clear()
        for name, pieces in self._pieces.items():
            self._local[name].zero_()
            self._stretches[name] = [_Stretch(start=start, stop=stop) for start, stop in pieces]

    def resume(self, plan: SalvagePlan) -> None:
        """Begin an iteration of which some micro-batches are done: :meth:`add` what is kept before the rest runs."""
        self.begin(plan.iteration)
        self._mix = plan.mix
        self.losses = dict(plan.losses)
        for name, pieces in self._pieces.items():
            self._stretches[name] = [
                _Stretch(start=max(gap.start, start), stop=min(gap.stop, stop), due=gap.micro_batches)
                for start, stop in pieces
                for gap in plan.gaps[name]
                if max(gap.start, start) < min(gap.stop, stop)
            ]

    def accumulate(self, parameters: Mapping[str, Tensor], micro_batch: int) -> None:
        """Take over one micro-batch's gradients, where they are due, and clear them. Nothing interrupts it.

        Args:
            parameters: Of the stage that it passed.
            micro_batch: Its index.
        """
        for name, parameter in parameters.items():
            stretches = self._stretches[name]
            gradient, parameter.grad = parameter.grad, None
            wanting = [stretch for stretch in stretches if stretch.wants(micro_batch)]
            for stretch in wanting:
                assert micro_batch not in stretch.contains, f"{name} counts micro-batch {micro_batch} twice"
                stretch.contains.add(micro_batch)
            if gradient is None:
                continue
            if len(wanting) == len(stretches):
                self._local[name] += gradient
                continue
            for stretch in wanting:
                view = self.local(name, stretch.start, stretch.stop)
                view += self._narrow(gradient, name, stretch.start, stretch.stop)

    def add(self, name: str, start: int, stop: int, kept: Tensor, micro_batches: frozenset[int]) -> None:
        """Add a sum that was kept from before a failure."""
        view = self.local(name, start, stop)
        view += kept.view(view.shape)
        for stretch in self._stretches[name]:
            if start <= stretch.start and stretch.stop <= stop:
                assert stretch.contains.isdisjoint(micro_batches), f"{name}[{start}:{stop}] counts a micro-batch twice"
                stretch.contains |= micro_batches

    def local(self, name: str, start: int, stop: int) -> Tensor:
        """This rank's own sum of a stretch: a view."""
        return self._narrow(self._local[name], name, start, stop)

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
        self._buffers = self._buffers or [
            torch.zeros(bucket.num_elements, dtype=torch.float64, device=self._device) for bucket in self._buckets
        ]
        waits: list[tuple[Bucket, Tensor, Group | None, Pending | None]] = []
        for bucket, buffer in zip(self._buckets, self._buffers, strict=True):
            for piece, part in self._parts(bucket, buffer):
                if self._rank in piece.contributors:
                    part.copy_(self.local(piece.name, piece.start, piece.stop))
                else:
                    part.zero_()
            group = groups[collective_name(bucket.ranks)] if len(bucket.ranks) > 1 else None
            waits.append((bucket, buffer, group, group.start_all_reduce(buffer) if group is not None else None))
        for bucket, buffer, group, pending in waits:
            if group is not None and pending is not None:
                phases.waits(WaitKind.GRADIENT, group.others, pending.wait)
            for piece, part in self._parts(bucket, buffer):
                self.settle(piece.name, piece.start, piece.stop, part)

    def squared_norm_part(self) -> float:
        """This rank's part of the squared global norm: of each piece, one holder counts it. After :meth:`reduce`."""
        buffers = zip(self._buckets, self._buffers, strict=True)
        return sum((float(buffer.dot(buffer)) for bucket, buffer in buffers if bucket.ranks[0] == self._rank), 0.0)

    def settle(self, name: str, start: int, stop: int, reduced: Tensor) -> None:
        """A piece is reduced over replicas: ``reduced``, which is kept and not copied, has every micro-batch."""
        self._reduced[name, start, stop] = reduced

    def gradients(self) -> dict[str, Tensor]:
        """The reduced gradients; views of what was settled where that is one piece.

        Raises:
            KeyError: A piece is not reduced yet.
        """
        whole = {}
        for name, pieces in self._pieces.items():
            parts = [self._reduced[name, start, stop] for start, stop in pieces]
            axis = self._specs[name].cut_axis
            whole[name] = self._local[name] if not parts else parts[0] if len(parts) == 1 else torch.cat(parts, axis)
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
        for piece_start, piece_stop in self._pieces[name]:
            if piece_start <= start and stop <= piece_stop and (name, piece_start, piece_stop) in self._reduced:
                reduced = self._reduced[name, piece_start, piece_stop]
                return reduced.narrow(self._specs[name].cut_axis, start - piece_start, stop - start)
        return self.local(name, start, stop)

    def _parts(self, bucket: Bucket, buffer: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece of a bucket and its part of the buffer, in the shape of the piece."""
        start = 0
        for piece in bucket.pieces:
            shape = self.local(piece.name, piece.start, piece.stop).shape
            part = buffer[start : start + shape.numel()].view(shape)
            yield piece, part
            start += part.numel()

    def _entries(self) -> Iterator[tuple[str, int, int, frozenset[int]]]:
        for name, pieces in self._pieces.items():
            settled = [piece for piece in pieces if (name, *piece) in self._reduced]
            for start, stop in settled:
                yield name, start, stop, self._everything
            for each in self._stretches.get(name, ()):
                if not any(start <= each.start and each.stop <= stop for start, stop in settled):
                    yield name, each.start, each.stop, frozenset(each.contains)

    def _narrow(self, tensor: Tensor, name: str, start: int, stop: int) -> Tensor:
        return tensor.narrow(self._specs[name].cut_axis, start - self._held[name].start, stop - start)
