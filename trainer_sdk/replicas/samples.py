"""Which samples a micro-batch has: a function of the step and the micro-batch alone, so that anybody can run it."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate


class MapDataset(Protocol):
    """A dataset whose samples are fetched by index."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int) -> Any:
        """A sample."""


def sample_indices(step: int, micro_batch: int, *, num_samples: int, per_step: int, size: int, seed: int) -> list[int]:
    """Indices of a micro-batch's samples: every pass over the data takes each once, in an order of its own.

    Args:
        step: Step.
        micro_batch: Micro-batch of the step.
        num_samples: Samples of the dataset.
        per_step: Micro-batches of a step.
        size: Samples of a micro-batch.
        seed: Of the orders.
    """
    start = (step * per_step + micro_batch) * size
    return [
        _order(seed, place // num_samples, num_samples)[place % num_samples] for place in range(start, start + size)
    ]


_LARGEST_SEED = (1 << 63) - 1


@lru_cache(maxsize=4)  # a step may lie on the border of two passes
def _order(seed: int, number: int, num_samples: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed + number)
    order: list[int] = torch.randperm(num_samples, generator=generator).tolist()
    return order


def noise_seed(seed: int, step: int, micro_batch: int) -> int:
    """What torch's random numbers in a micro-batch begin with, in a run of this seed."""
    return (seed * 0x9E3779B1 + step) * 0x85EBCA77 + micro_batch & _LARGEST_SEED


def batches_of(
    source: "MapDataset | Callable[[int, int], Any]",
    *,
    per_step: int,
    size: int = 1,
    seed: int = 0,
    collate: Callable[[Sequence[Any]], Any] | None = None,
) -> Callable[[int, int], Any]:
    """Batches by (step, micro-batch), of a dataset or of a function that is one already.

    Args:
        source: A map-style dataset, or a function of (step, micro-batch).
        per_step: Micro-batches of a step.
        size: Samples of a micro-batch.
        seed: Of the order of samples.
        collate: Makes a batch of samples; None = torch's.

    Raises:
        TypeError: It is neither, for example an iterator, which nobody can read a second time.
        ValueError: The dataset is empty, or the size is below 1.
    """
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        if not callable(source):
            raise TypeError(
                f"{type(source).__name__} cannot be read twice: give a dataset with __getitem__ and __len__, or a "
                "function of (step, micro_batch)"
            )
        return source
    dataset: MapDataset = source
    num_samples = len(dataset)
    if num_samples < 1 or size < 1:
        raise ValueError(f"a dataset of {num_samples} samples in micro-batches of {size}: each must be at least 1")

    def fetch(step: int, micro_batch: int) -> Any:
        chosen = sample_indices(step, micro_batch, num_samples=num_samples, per_step=per_step, size=size, seed=seed)
        return (collate or default_collate)([dataset[index] for index in chosen])

    return fetch
