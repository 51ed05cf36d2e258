"""What a replica's training state is made of, in units that are sent one after the other.

The first unit is what steps need at once: the optimizers' numbers, and whatever is kept and has no tensors (schedules,
gradient scalers). Then the parameters with their optimizer state, large ones in pieces. The last is everything kept,
and the buffers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.buckets import local
from evenkeel.trainer_sdk.replicas.state.packing import Packed, bytes_of, has_tensors, pack, unpack
from evenkeel.trainer_sdk.replicas.state.pieces import PIECE_BYTES, Piece, cut, is_elementwise


class Kept(Protocol):
    """Something whose state a newcomer needs: a schedule, a gradient scaler, averaged weights."""

    def state_dict(self) -> Any:
        """Its state: numbers, texts, lists, dictionaries, tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state over."""


@dataclass(frozen=True, slots=True)
class Received:
    """A unit that has arrived whole.

    Attributes:
        unit: Its number.
        step: The step that its values are from before.
        text: What :meth:`TrainingState.pack` made.
        tensors: Likewise.
    """

    unit: int
    step: int
    text: str
    tensors: Sequence[Tensor]


class TrainingState:
    """The state of one rank of a replica. Training thread, but for :meth:`pack`: a helper's.

    No helper of a newcomer touches its GPU, which may be busy with an operation that waits for the donor.

    Args:
        model: Model.
        kept: What else belongs to it; may grow until training begins.
        piece_bytes: Of a parameter's values that are sent at once.

    Attributes:
        num_units: How many units it has.
        num_held: Units that are valid here; a rank that holds all of the state has them all.
        signature: The same where models are alike.
    """

    def __init__(self, model: nn.Module, kept: Sequence[Kept], piece_bytes: int = PIECE_BYTES) -> None:
        self._model = model
        self._parameters = tuple(model.parameters())  # frozen ones too: they may be of no checkpoint
        self._members = set(self._parameters)
        self._exchanged = {each for each in self._parameters if each.requires_grad}
        self._is_open = False
        self._kept = kept
        self._device = local(self._parameters[0]).device
        self._optimizers: list[Optimizer] = []
        self._owners: dict[Tensor, Optimizer] = {}
        self._groups: dict[int, list[dict[str, Any]]] = {}  # what arrived for each optimizer, in the order of steps
        self._is_newcomer = False
        self._helpers_stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._states: dict[Tensor, dict[str, Any]] = {}  # a newcomer's, shared with its optimizers
        self._begun: set[Tensor] = set()  # parameters of which a newcomer has the first piece
        self._buffers: list[Tensor] = []
        self._pieces = tuple(cut(self._parameters, piece_bytes))
        self.num_units = len(self._pieces) + 2
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

    def check_kept(self) -> None:
        """Whether a newcomer can be sent what is kept: better said in the first step than when one is needed.

        Raises:
            TypeError: It cannot; one line with what to do.
        """
        for each in self._kept:
            try:
                pack(each.state_dict())
            except TypeError as error:
                raise TypeError(f"run.keep({type(each).__name__}): {error}") from error

    def forget(self) -> None:
        """Nothing of it is valid: this rank is a newcomer."""
        self.num_held = 0
        self._is_newcomer = True

    def open(self) -> None:
        """A step begins: buffers change in every forward, and what is sent is how they were before the first."""
        for each in self._kept:
            if isinstance(each, torch.amp.GradScaler):  # begins by a first loss, and there may be none here
                each.scale(torch.zeros((), device=self._device))
        self._is_open = True
        self._buffers = [buffer.detach().clone() for buffer in self._model.buffers()]
        if self._helpers_stream is not None:
            self._helpers_stream.wait_stream(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """The step's gradients are those of all replicas: optimizers may use them."""
        self._is_open = False

    def synchronise(self, group: Group | None, source: int) -> None:
        """Everybody begins with the parameters and buffers of one rank; None = there is nobody else."""
        if group is None:
            return
        with torch.no_grad():
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                mine = local(tensor.detach())
                sent = mine.clone(memory_format=torch.contiguous_format)
                group.start_broadcast(bytes_of(sent), source).wait()
                mine.copy_(sent)

    # ---- at who gives

    def pack(self, unit: int) -> Packed:
        """A unit as it is now; parameters are the living ones, so nobody may change them before it is sent."""
        with torch.cuda.stream(self._helpers_stream):  # not behind what this step computes
            return pack(self._unit(unit))

    def _unit(self, unit: int) -> dict[str, Any]:
        if unit == 0:
            states = [each.state_dict() for each in self._kept]
            light = [None if has_tensors(state) else state for state in states]
            return {"groups": [_settings_of(each) for each in self._optimizers], "kept": light}
        if unit == self.num_units - 1:
            return {"kept": [each.state_dict() for each in self._kept], "buffers": self._buffers}
        return self._cut_out(self._pieces[unit - 1])

    def _cut_out(self, piece: Piece) -> dict[str, Any]:
        parameter = self._parameters[piece.parameter]
        owner = self._owners.get(parameter)
        start = piece.start
        if not is_elementwise(owner):
            if not piece.is_last:
                return {}
            start = 0
        state = {} if owner is None else dict(owner.state.get(parameter, {}))
        along = {
            name: each for name, each in state.items() if isinstance(each, Tensor) and each.shape == parameter.shape
        }
        return {
            "start": start,
            "value": _flat(parameter)[start : piece.stop],
            "along": {name: _flat(each)[start : piece.stop] for name, each in along.items()},
            "rest": {name: each for name, each in state.items() if name not in along},
        }

    # ---- at who takes

    def install(self, received: Sequence[Received], step: int) -> list[Received]:
        """Make valid what was sent before the vote of a step; returns the rest."""
        for each in received:
            if each.step <= step:
                self._install(each.unit, unpack(each.text, each.tensors, self._device))
        return [each for each in received if each.step > step]

    def _install(self, unit: int, said: dict[str, Any]) -> None:
        if unit == 0:
            self._groups = dict(enumerate(said["groups"]))
            self._take_groups()
        elif said and unit < self.num_units - 1:
            parameter = self._parameters[self._pieces[unit - 1].parameter]
            self._begun.add(parameter)
            self._write(parameter, said)
        for buffer, value in zip(self._model.buffers(), said.get("buffers", []), strict=False):
            buffer.copy_(value)
        for kept, state in zip(self._kept, said.get("kept", []), strict=False):
            if state is not None:
                kept.load_state_dict(state)
        self.num_held = unit + 1

    def _write(self, parameter: Tensor, said: dict[str, Any]) -> None:
        """Some of a parameter, and of the optimizer state that has its shape, begins at an element."""
        mine, state = local(parameter.detach()), self._states.setdefault(parameter, {})
        _write_from(said["start"], said["value"], mine)
        for name, value in said["along"].items():
            if name not in state:
                state[name] = _like(torch.zeros(mine.shape, dtype=value.dtype, device=value.device), parameter)
            _write_from(said["start"], value, local(state[name]))
        state.update(said["rest"])

    def _take_groups(self) -> None:
        for place, optimizer in enumerate(self._optimizers):
            for group, numbers in zip(optimizer.param_groups, self._groups.pop(place, []), strict=False):
                group.update(numbers)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any optimizer of the process is about to step; where a closure makes the gradients, that comes first.

        Raises:
            TypeError: It is one that asks for gradients more than once a step.
            RuntimeError: It would use gradients that are not those of all replicas.
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
        every = [each for group in optimizer.param_groups for each in group["params"]]
        parameters = [each for each in every if each in self._members]
        if parameters:
            self._check_gradients(every)
        if parameters and not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._take_groups()
        for parameter in parameters:
            if self._is_newcomer and parameter not in self._owners:
                optimizer.state[parameter] = self._states.setdefault(parameter, {})
            self._owners[parameter] = optimizer
            if self.num_held < self.num_units and parameter not in self._begun:
                parameter.grad = None

    def _check_gradients(self, parameters: Sequence[Tensor]) -> None:
        if self._is_open:
            raise RuntimeError(
                "optimizer.step() comes after the loop over run.micro_batches(...): until then gradients are those of "
                "this replica"
            )
        if any(each.grad is not None and each not in self._exchanged for each in parameters):
            raise RuntimeError(
                "the optimizer has parameters whose gradients are those of this replica alone: what is trained must be "
                "in the model, and need gradients, when run.replicate() is called"
            )


def _settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What a step needs of its groups, parameters apart."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _numbers(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value.detach().double().sum())
    if isinstance(value, tuple | list) and all(isinstance(each, int | float) for each in value):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _like(whole: Tensor, parameter: Tensor) -> Tensor:
    """A state tensor of a sharded parameter is sharded as it is."""
    if local(parameter) is parameter:
        return whole
    sharded: Any = parameter
    made: Tensor = type(sharded).from_local(
        whole, sharded.device_mesh, sharded.placements, shape=sharded.shape, stride=sharded.stride(), run_check=False
    )
    return made


def _flat(tensor: Tensor) -> Tensor:
    return local(tensor.detach()).contiguous().view(-1)


def _write_from(start: int, value: Tensor, whole: Tensor) -> None:
    """Elements in a row, from one on; where memory has another order, it is all of them."""
    place = whole.view(-1)[start : start + value.numel()] if whole.is_contiguous() else whole
    place.copy_(value.view(place.shape))
