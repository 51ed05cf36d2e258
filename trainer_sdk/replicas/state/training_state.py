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
from evenkeel.trainer_sdk.replicas.state.packing import Packed, bytes_of, overwrite, pack, tensors_in, unpack
from evenkeel.trainer_sdk.replicas.state.pieces import PIECE_BYTES, Piece, cut, flat, is_elementwise, like, write_from
from evenkeel.trainer_sdk.replicas.vote import number_of
from evenkeel.trainer_sdk.watch.guard import say_once

_SAMPLE_SIZE = 1000


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
        kept: As given.
    """

    def __init__(self, model: nn.Module, kept: Sequence[Kept], piece_bytes: int = PIECE_BYTES) -> None:
        self._model = model
        self._buffers: dict[str, tuple[Tensor, int, Tensor]] = {}  # with its version and value before the first forward
        # Frozen ones too: they may be of no checkpoint. Last: loops make some of the others, as a teacher of a pupil.
        self._parameters = tuple(sorted(model.parameters(), key=lambda each: not each.requires_grad))
        self._places = {each: place for place, each in enumerate(self._parameters)}
        self._exchanged = {each for each in self._parameters if each.requires_grad}
        self._is_open = False
        self.kept = kept
        self._device = local(self._parameters[0]).device
        self._optimizers: dict[int, Optimizer] = {}  # by the place of their first parameter: they may take turns
        self._owners: dict[Tensor, Optimizer] = {}
        self._groups: dict[int, list[dict[str, Any]]] = {}  # what arrived for those that have not stepped here yet
        self._is_newcomer = False
        self._helpers_stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._states: dict[Tensor, dict[str, Any]] = {}  # a newcomer's, shared with its optimizers
        self._begun: set[Tensor] = set()  # parameters of which a newcomer has the first piece
        self._pieces = tuple(cut(self._parameters, piece_bytes))
        self.num_units = len(self._pieces) + 2
        self.num_held = self.num_units
        described = [
            (name, tuple(local(each).shape), str(each.dtype), each.requires_grad)
            for name, each in model.named_parameters()
        ]
        digest = hashlib.sha256(repr(described).encode()).hexdigest()[:8]
        self.signature = f"{sum(each.numel() for each in self._parameters):,} parameters in {len(described)} ({digest})"
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def settings(self) -> float:
        """Sum of the optimizers' numbers: differs where learning rates do. 0 where they are not known yet."""
        if not self.num_held or self._groups:
            return 0.0
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        return float(sum(number_of(value) for group in groups for value in group.values()))

    def sample(self) -> float:
        """Sum of some of the trained parameters' values: differs where a step did not do the same."""
        some = [local(each.detach()).reshape(-1)[:_SAMPLE_SIZE].double().abs().sum() for each in self._exchanged]
        return float(torch.stack(some).sum())

    def check_kept(self) -> None:
        """Whether a newcomer can be sent what is kept: better said in the first step than when one is needed.

        Raises:
            TypeError: It cannot; one line with what to do.
        """
        for each in self.kept:
            try:
                pack(each.state_dict())
            except TypeError as error:
                raise TypeError(f"run.keep({type(each).__name__}): {error}") from error

    def forget(self) -> None:
        """Nothing of it is valid: this rank is a newcomer."""
        self.num_held = 0
        self._is_newcomer = True

    def open(self) -> None:
        """A step begins."""
        for each in self.kept:
            if isinstance(each, torch.amp.GradScaler):  # begins by a first loss, and there may be none here
                each.scale(torch.zeros((), device=self._device))
        self._is_open = True
        self._buffers = {
            name: (each, 0 if each.is_inference() else each._version, each.detach().clone())
            for name, each in self._model.named_buffers()
        }
        if self._helpers_stream is not None:
            self._helpers_stream.wait_stream(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """The step's gradients are those of all replicas: optimizers may use them."""
        self._is_open = False
        for name, (buffer, version, _) in self._buffers.items():
            if not buffer.is_inference() and buffer._version != version:
                told = "buffer %s changes in a forward, and each replica runs others: where a loss uses it, freeze it"
                say_once("buffer", f"{told}, for example by eval() of its module", name)

    def let_go(self) -> None:
        """The job has ended here: the process's optimizers step as they like."""
        self._hook.remove()

    def synchronise(self, group: Group | None, source: int) -> None:
        """Everybody begins with the tensors of one rank, kept ones too; None = there is nobody else."""
        if group is None:
            return
        states = [each.state_dict() for each in self.kept]
        with torch.no_grad():
            for tensor in (*self._model.parameters(), *self._model.buffers(), *tensors_in(states)):
                mine = local(tensor.detach())
                sent = mine.to(self._device, copy=True, memory_format=torch.contiguous_format)
                group.start_broadcast(bytes_of(sent), source).wait()
                overwrite(mine, sent)
        for kept, state in zip(self.kept, states, strict=True):
            if tensors_in(state):
                kept.load_state_dict(state)

    # ---- at who gives

    def pack(self, unit: int) -> Packed:
        """A unit as it is now; parameters are the living ones, so nobody may change them before it is sent."""
        with torch.cuda.stream(self._helpers_stream):  # not behind what this step computes
            return pack(self._unit(unit))

    def _unit(self, unit: int) -> dict[str, Any]:
        if 0 < unit < self.num_units - 1:
            return self._cut_out(self._pieces[unit - 1])
        groups = {
            first: [{name: value for name, value in group.items() if name != "params"} for group in each.param_groups]
            for first, each in self._optimizers.items()
        }
        states = [each.state_dict() for each in self.kept]
        if unit == 0:
            return {"groups": groups, "kept": [None if tensors_in(state) else state for state in states]}
        return {"groups": groups, "kept": states, "buffers": [value for *_, value in self._buffers.values()]}

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
            "value": flat(parameter)[start : piece.stop],
            "along": {name: flat(each)[start : piece.stop] for name, each in along.items()},
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
        if "groups" in said:
            self._groups = said["groups"]
            self._take_groups()
        elif said:
            parameter = self._parameters[self._pieces[unit - 1].parameter]
            self._begun.add(parameter)
            self._write(parameter, said)
        for buffer, value in zip(self._model.buffers(), said.get("buffers", []), strict=False):
            overwrite(buffer, value)
        for kept, state in zip(self.kept, said.get("kept", []), strict=False):
            if state is not None:
                kept.load_state_dict(state)
        self.num_held = unit + 1

    def _write(self, parameter: Tensor, said: dict[str, Any]) -> None:
        """Some of a parameter, and of the optimizer state that has its shape, begins at an element."""
        mine, state = local(parameter.detach()), self._states.setdefault(parameter, {})
        write_from(said["start"], said["value"], mine)
        for name, value in said["along"].items():
            if name not in state:
                state[name] = like(torch.zeros(mine.shape, dtype=value.dtype, device=value.device), parameter)
            write_from(said["start"], value, local(state[name]))
        state.update(said["rest"])

    def _take_groups(self) -> None:
        for first, optimizer in self._optimizers.items():
            for group, numbers in zip(optimizer.param_groups, self._groups.pop(first, []), strict=False):
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
        parameters = [each for each in every if each in self._places]
        if not parameters:
            if any(each.grad is not None for each in every):
                told = "%s trains nothing that run.replicate() was given: its gradients are those of this replica alone"
                say_once("optimizer", told, type(optimizer).__name__)
            return
        self._check_gradients(every)
        first = self._places[parameters[0]]
        if self._optimizers.get(first) is not optimizer:
            self._optimizers[first] = optimizer
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
