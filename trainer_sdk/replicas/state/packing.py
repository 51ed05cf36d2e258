"""Plain values with tensors in them, as a text and flat bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evenkeel.trainer_sdk.replicas.buckets import local

Packed = tuple[str, list[Tensor]]
"""A value on its way: a text, and flat bytes for each tensor that it names."""


def pack(value: Any) -> Packed:
    """Plain values as JSON, in which each tensor is a place in the list of those to send, all of them on the CPU.

    Raises:
        TypeError: Something in it is neither a number, a text, a list, a mapping nor a tensor.
    """
    tensors: list[Tensor] = []

    def plain(each: Any) -> Any:
        if isinstance(each, Tensor):
            tensors.append(local(each.detach()).contiguous())
            return {"tensor": len(tensors) - 1}
        if isinstance(each, Mapping):
            return {"map": [[plain(name), plain(entry)] for name, entry in each.items()]}
        if isinstance(each, tuple):
            return {"tuple": [plain(entry) for entry in each]}
        if isinstance(each, list):
            return [plain(entry) for entry in each]
        if each is None or isinstance(each, bool | int | float | str):
            return each
        raise TypeError(
            f"a {type(each).__name__} in a state cannot be sent to a newcomer: use numbers, texts, lists, tensors"
        )

    body = plain(value)
    shapes = [[str(each.dtype).removeprefix("torch."), list(each.shape), each.device.type] for each in tensors]
    return json.dumps({"body": body, "tensors": shapes}), [bytes_of(each).cpu() for each in tensors]


def space(text: str) -> list[Tensor]:
    """Where the tensors that a text names are to be received: memory that nothing else uses."""
    return [
        bytes_of(torch.empty(shape, dtype=getattr(torch, dtype))) for dtype, shape, _ in json.loads(text)["tensors"]
    ]


def unpack(text: str, tensors: Sequence[Tensor], device: torch.device) -> Any:
    """The inverse of :func:`pack`; its tensors are on this device, but for those that were on the CPU anyway."""
    said = json.loads(text)
    made = [
        flat.view(getattr(torch, dtype)).view(shape).to("cpu" if place == "cpu" else device)
        for flat, (dtype, shape, place) in zip(tensors, said["tensors"], strict=True)
    ]

    def value(each: Any) -> Any:
        if isinstance(each, list):
            return [value(entry) for entry in each]
        if not isinstance(each, dict):
            return each
        (kind, content), *_ = each.items()
        readers: dict[str, Callable[[], Any]] = {
            "tensor": lambda: made[content],
            "map": lambda: {value(name): value(entry) for name, entry in content},
            "tuple": lambda: tuple(value(entry) for entry in content),
        }
        return readers[kind]()

    return value(said["body"])


def tensors_in(state: Any) -> list[Tensor]:
    """The tensors somewhere in plain values, in their order."""
    if isinstance(state, Tensor):
        return [state]
    entries = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [tensor for each in entries for tensor in tensors_in(each)]


def bytes_of(tensor: Tensor) -> Tensor:
    """A tensor's memory, flat, which groups carry whatever it holds; a copy where it is not contiguous."""
    return tensor.reshape(-1).view(torch.uint8)


def overwrite(tensor: Tensor, value: Tensor) -> None:
    """Write all of a tensor, also of a buffer that was made in a validation under ``torch.inference_mode()``."""
    with torch.inference_mode(tensor.is_inference()):
        tensor.copy_(value)
