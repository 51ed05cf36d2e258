"""The optimizers of a replica's model, which nobody names: each is known from its first step on."""

import gc
import math
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from evenkeel.trainer_sdk.replicas.buckets import local
from evenkeel.trainer_sdk.replicas.state.pieces import Piece, flat, is_elementwise, like, write_from
from evenkeel.trainer_sdk.replicas.vote import number_of
from evenkeel.trainer_sdk.watch.guard import say_once

_SMALLEST = 1e-12
"""Numbers of an optimizer are compared by their size down to this one."""

States = dict[str, tuple[dict[str, Tensor], dict[str, Any]]]
"""By optimizer, what it holds of some of a parameter: tensors cut as that is, and the rest."""


class Optimizers:
    """Every step of an optimizer of this process comes by here. Training thread, but for what a donor's thread reads.

    Args:
        parameters: Of the model, in the order that is the same on all replicas.
        kept: What is known by its place, as it was given to ``run.keep``.

    Attributes:
        is_open: A step's gradients are not those of all replicas yet.
        begun: In a newcomer, the parameters of which it has the first piece; None = all are valid.
    """

    def __init__(self, parameters: Sequence[Tensor], kept: Sequence[Any]) -> None:
        self.is_open = False
        self.begun: set[Tensor] | None = None
        self._kept = kept
        self._places = {each: place for place, each in enumerate(parameters)}
        self._exchanged = {each for each in parameters if each.requires_grad}
        # Not kept alive: one that its loop has let go of holds memory, and nobody steps it any more.
        self._by_name = WeakValueDictionary[str, Optimizer]()
        self._owners: dict[Tensor, WeakValueDictionary[str, Optimizer]] = {}  # several may step one in turns
        self._replaced: WeakSet[Optimizer] = WeakSet()
        self._stepped: set[str] = set()  # since the newest vote
        self._are_told = True
        self._groups: dict[str, list[dict[str, Any]]] = {}  # what arrived for those that are not made here yet
        # A newcomer's, shared with its optimizers; None where they began by themselves.
        self._states: dict[tuple[str, Tensor], dict[str, Any]] | None = None
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def settings(self) -> float:
        """Of the numbers of those that stepped last: differs where learning rates do, small ones too; 0 = not known."""
        if not self._are_told:
            return 0.0
        groups = [
            group for name in self._stepped if name in self._by_name for group in self._by_name[name].param_groups
        ]
        numbers = [number_of(value) for group in groups for value in group.values()]
        return sum(math.asinh(number / _SMALLEST) for number in numbers if math.isfinite(number))

    @property
    def groups(self) -> dict[str, list[dict[str, Any]]]:
        """The numbers of all, by name."""
        return {
            name: [{key: value for key, value in group.items() if key != "params"} for group in each.param_groups]
            for name, each in self._by_name.items()
        }

    def forget(self) -> None:
        """Nothing here is valid: this is a newcomer."""
        self.begun, self._states, self._are_told = set(), {}, False

    def voted(self) -> None:
        """Gradients are those of all replicas: they may be used."""
        self.is_open = False
        self._stepped.clear()

    def let_go(self) -> None:
        """The process's optimizers step as they like."""
        self._hook.remove()

    def cut_out(self, piece: Piece, parameter: Tensor) -> tuple[int, States] | None:
        """Their states of a piece, and where it begins; None where it is to go as a part of the last one."""
        owners, start = dict(self._owners.get(parameter, {})), piece.start
        if not all(is_elementwise(owner) for owner in owners.values() if owner.state.get(parameter)):
            if not piece.is_last:
                return None
            start = 0
        states: States = {}
        for name, owner in owners.items():
            state = owner.state.get(parameter, {}).items()
            along = {
                key: flat(each)[start : piece.stop]
                for key, each in state
                if isinstance(each, Tensor) and each.shape == parameter.shape
            }
            states[name] = along, {key: each for key, each in state if key not in along}
        return start, states

    def write(self, parameter: Tensor, start: int, states: States) -> None:
        """The inverse, in a newcomer."""
        assert self._states is not None, "it is a newcomer"
        if self.begun is not None:
            self.begun.add(parameter)
        for name, (along, rest) in states.items():
            state = self._states.setdefault((name, parameter), {})
            for key, value in along.items():
                if key not in state:
                    zeros = torch.zeros(local(parameter).shape, dtype=value.dtype, device=value.device)
                    state[key] = like(zeros, parameter)
                write_from(start, value, local(state[key]))
            state.update(rest)

    def take(self, groups: dict[str, list[dict[str, Any]]]) -> None:
        """The numbers of all, at once: what a loop sets before their next steps is newer. For others when they step."""
        self._groups, self._are_told = dict(groups), True
        for optimizer in {*self._by_name.values(), *_living()}:  # one that a loop has frozen is not among the living
            parameters = [each for group in optimizer.param_groups for each in group["params"] if each in self._places]
            name = self._called(optimizer, self._places[parameters[0]]) if parameters else ""
            if name in groups:
                _give(groups[name], optimizer)
                self._groups.pop(name, None)

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
        name = self._name(optimizer, self._places[parameters[0]])
        before = self._by_name.get(name)
        if before is not optimizer:
            self._by_name[name] = optimizer
            _give(self._groups.pop(name, []), optimizer)
            if before is not None:
                self._replaced.add(before)
        self._stepped.add(name)
        for parameter in parameters:
            owners, given = self._owners.setdefault(parameter, WeakValueDictionary()), (name, parameter)
            if self._states is not None and name not in owners and (self.begun is not None or given in self._states):
                optimizer.state[parameter] = self._states.setdefault(given, {})
            owners[name] = optimizer
            if self.begun is not None and parameter not in self.begun:
                parameter.grad = None

    def _name(self, optimizer: Optimizer, first: int) -> str:
        """What it is called on all replicas; one that is made later in place of another has its name.

        Raises:
            RuntimeError: It takes turns with another one of that name.
        """
        name, kind = self._called(optimizer, first), type(optimizer).__name__
        if name == f"{kind} {first}" and optimizer in self._replaced:
            raise RuntimeError(
                f"two {kind} take turns at the same parameters: give both to run.keep(), to be told apart"
            )
        return name

    def _called(self, optimizer: Optimizer, first: int) -> str:
        kept = next((place for place, each in enumerate(self._kept) if _bare(each) is optimizer), None)
        return f"{type(optimizer).__name__} {first}" if kept is None else f"kept {kept}"

    def _check_gradients(self, parameters: Sequence[Tensor]) -> None:
        if self.is_open:
            raise RuntimeError(
                "optimizer.step() comes after the loop over run.micro_batches(...): until then gradients are those of "
                "this replica"
            )
        if any(each.grad is not None and each not in self._exchanged for each in parameters):
            raise RuntimeError(
                "the optimizer has parameters whose gradients are those of this replica alone: what is trained must be "
                "in the model, and need gradients, when run.replicate() is called"
            )


def _living() -> Iterator[Optimizer]:
    """Those of the process, stepped or not, without what libraries wrap around them and show the groups of."""
    for each in gc.get_objects():
        # By the type: objects of others may do anything when they are asked for their class.
        if issubclass(type(each), Optimizer) and "param_groups" in vars(each):
            yield each


def _give(numbers: list[dict[str, Any]], optimizer: Optimizer) -> None:
    for group, mine in zip(optimizer.param_groups, numbers, strict=False):
        group.update(mine)


def _bare(kept: Any) -> Any:
    """An optimizer without what Accelerate or Lightning wraps it in; anything else as it is."""
    while isinstance(kept, Optimizer) and isinstance(inner := getattr(kept, "optimizer", None), Optimizer):
        kept = inner
    return kept
