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

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.buckets import local
from evenkeel.trainer_sdk.replicas.state.optimizers import Optimizers
from evenkeel.trainer_sdk.replicas.state.packing import Packed, bytes_of, overwrite, pack, tensors_in, unpack
from evenkeel.trainer_sdk.replicas.state.pieces import PIECE_BYTES, cut, flat, write_from
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
        optimizers: Those that step the model's parameters.
    """

    def __init__(self, model: nn.Module, kept: Sequence[Kept], piece_bytes: int = PIECE_BYTES) -> None:
        self._model = model
        self._buffers: dict[str, tuple[Tensor, int, Tensor]] = {}  # with its version and value before the first forward
        # Frozen ones too: they may be of no checkpoint. Last: loops make some of the others, as a teacher of a pupil.
        self._parameters = tuple(sorted(model.parameters(), key=lambda each: not each.requires_grad))
        self._trained = [each for each in self._parameters if each.requires_grad]
        self.kept = kept
        self._device = local(self._parameters[0]).device
        self.optimizers = Optimizers(self._parameters, kept)
        self._helpers_stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pieces = tuple(cut(self._parameters, piece_bytes))
        self.num_units = len(self._pieces) + 2
        self.num_held = self.num_units
        described = [
            (name, tuple(local(each).shape), str(each.dtype), each.requires_grad)
            for name, each in model.named_parameters()
        ]
        digest = hashlib.sha256(repr(described).encode()).hexdigest()[:8]
        self.signature = f"{sum(each.numel() for each in self._parameters):,} parameters in {len(described)} ({digest})"
        self._made_of = _made_of(model)

    def sample(self) -> float:
        """Sum of some of the trained parameters' values: differs where a step did not do the same."""
        some = [local(each.detach()).reshape(-1)[:_SAMPLE_SIZE].double().abs().sum() for each in self._trained]
        return float(torch.stack(some).sum())

    def check(self) -> None:
        """Whether a newcomer can be sent what is kept: better said in the first step than when one is needed.

        Raises:
            TypeError: It cannot; one line with what to do.
            ValueError: The model is not what it was any more.
        """
        if self._made_of != _made_of(self._model):
            raise ValueError(
                "parameters were replaced, cast or moved after run.replicate(), which watches those that it was given: "
                "do that before it"
            )
        for each in self.kept:
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise TypeError(
                    f"run.keep({type(each).__name__}): it has no state_dict and load_state_dict to be sent by"
                )
            try:
                pack(each.state_dict())
            except TypeError as error:
                raise TypeError(f"run.keep({type(each).__name__}): {error}") from error

    def forget(self) -> None:
        """Nothing of it is valid: this rank is a newcomer."""
        self.num_held = 0
        self.optimizers.forget()

    def open(self) -> None:
        """A step begins."""
        for each in self.kept:
            if isinstance(each, torch.amp.GradScaler):  # begins by a first loss, and there may be none here
                each.scale(torch.zeros((), device=self._device))
        self.optimizers.is_open = True
        self._buffers = {
            name: (each, 0 if each.is_inference() else each._version, each.detach().clone())
            for name, each in self._model.named_buffers()
        }
        if self._helpers_stream is not None:
            self._helpers_stream.wait_stream(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """The step's gradients are those of all replicas: optimizers may use them."""
        self.optimizers.voted()
        for name, (buffer, version, _) in self._buffers.items():
            if not buffer.is_inference() and buffer._version != version:
                told = "buffer %s changes in a forward, and each replica runs others: where a loss uses it, freeze it"
                say_once("buffer", f"{told}, for example by eval() of its module", name)

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
            piece = self._pieces[unit - 1]
            parameter = self._parameters[piece.parameter]
            found = self.optimizers.cut_out(piece, parameter)
            if found is None:
                return {}
            start, states = found
            return {"start": start, "value": flat(parameter)[start : piece.stop], "states": states}
        groups = self.optimizers.groups
        kept = [each.state_dict() for each in self.kept]
        if unit == 0:
            return {"groups": groups, "kept": [None if tensors_in(state) else state for state in kept]}
        return {"groups": groups, "kept": kept, "buffers": [value for *_, value in self._buffers.values()]}

    # ---- at who takes

    def install(self, received: Sequence[Received], step: int) -> list[Received]:
        """Make valid what was sent before the vote of a step; returns the rest."""
        for each in received:
            if each.step <= step:
                self._install(each.unit, unpack(each.text, each.tensors, self._device))
        return [each for each in received if each.step > step]

    def _install(self, unit: int, said: dict[str, Any]) -> None:
        if "groups" in said:
            self.optimizers.take(said["groups"])
        elif said:
            parameter = self._parameters[self._pieces[unit - 1].parameter]
            write_from(said["start"], said["value"], local(parameter.detach()))
            self.optimizers.write(parameter, said["start"], said["states"])
        for buffer, value in zip(self._model.buffers(), said.get("buffers", []), strict=False):
            overwrite(buffer, value)
        for kept, state in zip(self.kept, said.get("kept", []), strict=False):
            if state is not None:
                kept.load_state_dict(state)
        self.num_held = unit + 1
        if self.num_held == self.num_units:
            self.optimizers.begun = None


def _made_of(model: nn.Module) -> list[Any]:
    """Differs where a parameter is another one, or has another type, place or order in memory."""
    return [(id(each), each.dtype, each.device, each.stride()) for each in model.parameters()]
