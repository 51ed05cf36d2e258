"""What a replica's training state is made of, in units that are sent one after the other.

The first unit is what steps need at once: the optimizers' numbers, and whatever is kept and has no tensors (schedules,
gradient scalers). Then each parameter with its optimizer state. The last is everything kept, and the buffers.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.buckets import local


class Kept(Protocol):
    """Something whose state a newcomer needs: a schedule, a gradient scaler, averaged weights."""

    def state_dict(self) -> Any:
        """Its state: numbers, texts, lists, dictionaries, tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state over."""


Unit = tuple[str, list[Tensor]]
"""A unit on its way: a text, and flat bytes for each tensor that it names."""


class TrainingState:
    """The state of one rank of a replica. Training thread, except :meth:`pack` and :meth:`space` on a sender's.

    Args:
        model: Model.
        kept: What else belongs to it; may grow until training begins.

    Attributes:
        num_units: How many units it has.
        num_held: Units that are valid here; a rank that holds all of the state has them all.
        signature: The same where models are alike.
    """

    def __init__(self, model: nn.Module, kept: Sequence[Kept]) -> None:
        self._model = model
        self._parameters = tuple(model.parameters())  # frozen ones too: they may be of no checkpoint
        self._places = {parameter: place for place, parameter in enumerate(self._parameters)}
        self._kept = kept
        self._device = local(self._parameters[0]).device
        self._optimizers: list[Optimizer] = []
        self._groups: dict[int, list[dict[str, Any]]] = {}  # what arrived for each optimizer, in the order of steps
        self._arrived: dict[Tensor, dict[str, Any]] = {}
        self._buffers: list[Tensor] = []
        self.num_units = len(self._parameters) + 2
        self.num_held = self.num_units
        described = [
            (name, tuple(local(each).shape), str(each.dtype), each.requires_grad)
            for name, each in model.named_parameters()
        ]
        digest = hashlib.sha256(repr(described).encode()).hexdigest()[:8]
        self.signature = f"{sum(each.numel() for each in self._parameters):,} parameters in {len(described)} ({digest})"
        register_optimizer_step_pre_hook(self._before_step)

    @property
    def settings(self) -> float:
        """Sum of the optimizers' numbers: differs where learning rates do. 0 where they are not known yet."""
        if not self.num_held:
            return 0.0
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return float(sum(_numbers(value) for group in groups for value in group.values()))

    def forget(self) -> None:
        """Nothing of it is valid: this rank is a newcomer."""
        self.num_held = 0

    def open(self) -> None:
        """A step begins: buffers change in every forward, and what is sent is how they were before the first."""
        for each in self._kept:
            if isinstance(each, torch.amp.GradScaler):  # begins by a first loss, and there may be none here
                each.scale(torch.zeros((), device=self._device))
        self._buffers = [buffer.detach().clone() for buffer in self._model.buffers()]

    def synchronise(self, group: Group | None, source: int) -> None:
        """Everybody begins with the parameters and buffers of one rank; None = there is nobody else."""
        if group is None:
            return
        with torch.no_grad():
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                mine = local(tensor.detach())
                sent = mine.contiguous()
                group.start_broadcast(sent, source).wait()
                mine.copy_(sent)

    # ---- at who gives

    def pack(self, unit: int) -> Unit:
        """A unit as it is now; parameters are the living ones, so nobody may change them before it is sent."""
        if unit == 0:
            light = [state if not _has_tensors(state) else None for state in map(_state_of, self._kept)]
            return self._packed({"groups": [_settings_of(each) for each in self._optimizers], "kept": light})
        if unit == self.num_units - 1:
            return self._packed({"kept": [_state_of(each) for each in self._kept], "buffers": self._buffers})
        parameter = self._parameters[unit - 1]
        states = [dict(each.state[parameter]) for each in self._optimizers if parameter in each.state]
        return self._packed({"value": parameter.detach(), "state": states[0] if states else {}})

    def _packed(self, value: Any) -> Unit:
        text, tensors = _packed(value)
        return text, [each.to(self._device) for each in tensors]

    # ---- at who takes

    def space(self, unit: int, text: str) -> list[Tensor]:
        """Where a unit's tensors are to be received: a parameter's own memory, as nobody uses it before it is whole."""
        found = [_empty(each, self._device) for each in json.loads(text)["tensors"]]
        if 0 < unit < self.num_units - 1:
            value = local(self._parameters[unit - 1].detach())
            if value.is_contiguous() and _bytes_of(value).shape == found[0].shape:
                found[0] = _bytes_of(value)
        return found

    def install(self, unit: int, text: str, tensors: Sequence[Tensor]) -> None:
        """The next unit is valid from now on.

        Raises:
            ValueError: It is not a unit of this model.
        """
        said = _unpacked(text, tensors)
        if unit == 0:
            self._groups = dict(enumerate(said["groups"]))
            self._take_groups()
        elif unit < self.num_units - 1:
            parameter = self._parameters[unit - 1]
            mine = local(parameter.detach())
            if mine.shape != said["value"].shape:
                raise ValueError(
                    f"parameter {unit - 1} is {tuple(mine.shape)} here, {tuple(said['value'].shape)} there"
                )
            mine.copy_(said["value"])
            self._arrived[parameter] = said["state"]
        else:
            for buffer, value in zip(self._model.buffers(), said["buffers"], strict=True):
                buffer.copy_(value)
        for kept, state in zip(self._kept, said.get("kept", []), strict=False):
            if state is not None:
                kept.load_state_dict(state)
        self.num_held = unit + 1

    def _take_groups(self) -> None:
        for place, optimizer in enumerate(self._optimizers):
            for group, numbers in zip(optimizer.param_groups, self._groups.pop(place, []), strict=False):
                group.update(numbers)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any optimizer of the process is about to step; where a closure makes the gradients, that comes first.

        Raises:
            TypeError: It is one that asks for gradients more than once a step.
        """
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("LBFGS computes gradients more than once a step, which replicas do not: use another one")
        closure = kwargs.get("closure") or next(iter(args[1:]), None)
        if closure is None:
            self._choose(optimizer)
            return None

        def chosen_after() -> Any:
            loss = closure()
            self._choose(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": chosen_after}

    def _choose(self, optimizer: Optimizer) -> None:
        """On a newcomer an optimizer steps what is valid here, and no more."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not any(each in self._places for each in parameters):
            return
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._take_groups()
        for parameter in parameters:
            place = self._places.get(parameter, 0)
            state = self._arrived.pop(parameter, None)
            if state is not None:
                optimizer.state[parameter] = {name: _like(value, parameter) for name, value in state.items()}
            if parameter in self._places and place + 1 >= self.num_held:
                parameter.grad = None


def _state_of(kept: Kept) -> Any:
    return kept.state_dict()


def _settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What a step needs of its groups, parameters apart."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _numbers(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value.detach().double().sum())
    if isinstance(value, tuple | list) and all(isinstance(each, int | float) for each in value):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _like(value: Any, parameter: Tensor) -> Any:
    """A state tensor of a sharded parameter is sharded as it is."""
    mine = local(parameter)
    if not isinstance(value, Tensor) or mine is parameter or value.shape != mine.shape:
        return value
    sharded: Any = parameter
    return type(sharded).from_local(
        value, sharded.device_mesh, sharded.placements, shape=sharded.shape, stride=sharded.stride(), run_check=False
    )


def _has_tensors(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(map(_has_tensors, state.values()))
    if isinstance(state, list | tuple):
        return any(map(_has_tensors, state))
    return isinstance(state, Tensor)


def _packed(value: Any) -> Unit:
    """Plain values as JSON, in which each tensor is a place in the list."""
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
    return json.dumps({"body": body, "tensors": shapes}), [_bytes_of(each) for each in tensors]


def _unpacked(text: str, tensors: Sequence[Tensor]) -> Any:
    said = json.loads(text)
    made = [
        flat.view(getattr(torch, dtype)).view(shape).to("cpu" if place == "cpu" else flat.device)
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


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _empty(described: Sequence[Any], device: torch.device) -> Tensor:
    dtype, shape, _ = described
    return _bytes_of(torch.empty(shape, dtype=getattr(torch, dtype), device=device))
