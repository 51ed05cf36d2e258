"""The samples of one frame: some came alone, most in a crowd, and of those nobody makes a value each."""

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain.observed import ArrivedSample
from evenkeel.services.telemetry.domain.sample_block import SampleBlock, SampleRow


class BlockRows(NamedTuple):
    """Some rows of a block."""

    block: SampleBlock
    rows: Ints


class FrameEntries(Collection[ArrivedSample]):
    """One sample a rank; iterating gives them ascending by rank."""

    __slots__ = ("_alone", "_crowds", "_longest_in_crowds")

    def __init__(self, samples: Sequence[ArrivedSample] = ()) -> None:
        """Starts with some samples, of different ranks."""
        self._alone = {sample.rank: sample for sample in samples}
        self._crowds: list[BlockRows] = []
        self._longest_in_crowds = 0.0

    def __len__(self) -> int:
        return len(self._alone) + sum(len(crowd.rows) for crowd in self._crowds)

    def __iter__(self) -> Iterator[ArrivedSample]:
        samples = [*self._alone.values(), *self._in_crowds()]
        return iter(sorted(samples, key=attrgetter("rank")))

    def __contains__(self, sample: object) -> bool:
        return any(each == sample for each in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameEntries) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # samples are still added

    def get(self, rank: int) -> ArrivedSample | None:
        """A rank's sample; None if there is none."""
        if any((crowd.block.ranks[crowd.rows] == rank).any() for crowd in self._crowds):
            self._alone |= {sample.rank: sample for sample in self._in_crowds()}
            self._crowds.clear()
            self._longest_in_crowds = 0.0
        return self._alone.get(rank)

    def put(self, sample: ArrivedSample) -> None:
        """Adds a sample; it takes the place of the one that :meth:`get` found of its rank."""
        self._alone[sample.rank] = sample

    def put_crowd(self, block: SampleBlock, rows: Ints, longest_seconds: float) -> None:
        """Adds the samples in some rows of a block, of ranks of which none is here; the longest took so long."""
        self._crowds.append(BlockRows(block, rows))
        self._longest_in_crowds = max(self._longest_in_crowds, longest_seconds)

    @property
    def only_crowd(self) -> BlockRows | None:
        """All samples, where they came in one crowd and none alone."""
        return self._crowds[0] if len(self._crowds) == 1 and not self._alone else None

    def ranks(self) -> list[int]:
        """All ranks, in no order."""
        found = list(self._alone)
        for block, rows in self._crowds:
            found.extend(block.ranks[rows].tolist())
        return found

    def longest_seconds(self) -> float:
        """The longest iteration of all; 0 if there is none."""
        return max([self._longest_in_crowds, *(sample.wall_seconds for sample in self._alone.values())])

    def in_blocks(self) -> list[BlockRows]:
        """All samples that came in blocks, in no order."""
        parts = list(self._crowds)
        rows: dict[int, list[int]] = {}
        blocks: dict[int, SampleBlock] = {}
        for sample in self._alone.values():
            if isinstance(sample.payload, SampleRow):
                block, row = sample.payload
                blocks[id(block)] = block
                rows.setdefault(id(block), []).append(row)
        parts.extend(BlockRows(blocks[number], np.array(each, dtype=np.int64)) for number, each in rows.items())
        return parts

    def _in_crowds(self) -> list[ArrivedSample]:
        return [block.samples(row, row + 1)[0] for block, rows in self._crowds for row in rows.tolist()]
