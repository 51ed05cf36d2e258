"""Micro-batches: which documents they contain is a pure function of (seed, iteration, micro-batch index).

So any rank can make any micro-batch, knows the size of all others, and a reshaped or repeated iteration consumes
exactly the samples that it would have consumed anyway. A sequence mix (:mod:`evenkeel.layouts.sizes.mix`) deals the
same documents of the iteration out to its micro-batches in another way.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenkeel.layouts.sizes.mix import Mix, mixed
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.corpus import Corpus, load_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Which documents a micro-batch contains.

    Attributes:
        starts: First byte of each in the corpus.
        lengths: Tokens of each; one more byte follows as the last target.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens N."""
        return sum(self.lengths)

    @property
    def sum_of_squares(self) -> float:
        """Sum of squared lengths: what attention costs."""
        return float(sum(length * length for length in self.lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed documents; attention stays within each of them.

    Attributes:
        index: Index within the iteration.
        documents: What it contains.
        tokens: Token ids, int64 [N].
        targets: Next token of each, int64 [N].
        offsets: Position within the document, int64 [N].
    """

    index: int
    documents: Documents
    tokens: Tensor
    targets: Tensor
    offsets: Tensor


class Dataset:
    """The samples of a job.

    Args:
        config: Job; its seed and workload decide every sample.
        device: Where micro-batches are made.
    """

    def __init__(self, config: TrainingConfig, device: torch.device | None = None) -> None:
        self._seed = config.seed
        self._workload = config.workload
        self._longest = min(config.model.max_document_length, config.workload.token_budget)
        self._corpus = load_corpus(config.workload.corpus_bytes)
        self._device = device or torch.device("cpu")
        self._mix: Mix | None = None
        self._drawn: tuple[int, tuple[Documents, ...]] = -1, ()
        self._dealt: tuple[int, tuple[Documents, ...]] = -1, ()

    def under(self, mix: Mix | None) -> "Dataset":
        """The same samples with another mix."""
        view = copy(self)
        view._mix = mix
        view._dealt = -1, ()
        return view

    def documents(self, iteration: int, index: int) -> Documents:
        """What micro-batch ``index`` of an iteration contains."""
        if self._mix is None:
            return self._all_drawn(iteration)[index]
        if self._dealt[0] != iteration:
            max_tokens = int(self._workload.token_budget * self._mix.max_scale)
            self._dealt = iteration, dealt_documents(self._all_drawn(iteration), self._mix, max_tokens)
        return self._dealt[1][index]

    def _all_drawn(self, iteration: int) -> tuple[Documents, ...]:
        """The iteration's micro-batches as they were drawn."""
        if self._drawn[0] != iteration:
            indices = range(self._workload.num_micro_batches)
            self._drawn = (
                iteration,
                tuple(
                    choose_documents(self._corpus, self._workload, self._longest, self._seed, iteration, index)
                    for index in indices
                ),
            )
        return self._drawn[1]

    def total_tokens(self, iteration: int) -> int:
        """Tokens of the whole iteration: what its loss is normalised by."""
        return sum(documents.num_tokens for documents in self._all_drawn(iteration))

    def micro_batch(self, iteration: int, index: int) -> MicroBatch:
        """Micro-batch ``index`` of an iteration."""
        documents = self.documents(iteration, index)
        return _pack(index, documents, self._corpus.data, self._device)


def choose_documents(
    corpus: Corpus, workload: WorkloadConfig, longest: int, seed: int, iteration: int, index: int
) -> Documents:
    """Draw documents of log-normal length until the budget is full; each lies within one file."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, iteration, index))))
    is_long = any(start <= iteration < stop for start, stop in workload.long_stretches)
    median = workload.long_median_document_length if is_long else workload.median_document_length
    starts: list[int] = []
    lengths: list[int] = []
    room = workload.token_budget
    while room >= workload.min_document_length:
        drawn = round(float(generator.lognormal(np.log(median), workload.length_spread)))
        position = int(generator.integers(corpus.data.size))
        first, stop = corpus.file_around(position)
        length = max(workload.min_document_length, min(drawn, longest, stop - first - 1))
        if length > room:
            # Closing the pack with a shorter piece would undo the long tail; a first document is cut to fit.
            if starts:
                break
            length = room
        starts.append(max(first, min(position, stop - length - 1)))
        lengths.append(length)
        room -= length
    return Documents(starts=tuple(starts), lengths=tuple(lengths))


def dealt_documents(drawn: Sequence[Documents], mix: Mix, max_tokens: int) -> tuple[Documents, ...]:
    """The documents of an iteration, dealt out to its micro-batches by a mix; as drawn where they do not fit."""
    everything = [each for documents in drawn for each in zip(documents.starts, documents.lengths, strict=True)]
    packs = mixed(mix, [length for _, length in everything], max_tokens)
    if packs is None:
        return tuple(drawn)
    return tuple(
        Documents(
            starts=tuple(everything[number][0] for number in pack),
            lengths=tuple(everything[number][1] for number in pack),
        )
        for pack in packs
    )


def _pack(index: int, documents: Documents, data: npt.NDArray[np.uint8], device: torch.device) -> MicroBatch:
    pieces = [
        data[start : start + length + 1].astype(np.int64)
        for start, length in zip(documents.starts, documents.lengths, strict=True)
    ]
    offsets = np.concatenate([np.arange(length) for length in documents.lengths])
    return MicroBatch(
        index=index,
        documents=documents,
        tokens=torch.from_numpy(np.concatenate([piece[:-1] for piece in pieces])).to(device),
        targets=torch.from_numpy(np.concatenate([piece[1:] for piece in pieces])).to(device),
        offsets=torch.from_numpy(offsets).to(device),
    )
