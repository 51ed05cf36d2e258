"""The tensors in what a module takes and gives."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def differentiable_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested tuples, lists, mappings and dataclasses through which a backward pass will come."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
    for part in parts:
        yield from differentiable_tensors(part)
