"""The step vote: a small sum over replicas, queued behind the gradients' buckets, so that its passing proves them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

_NUM_SUMS = 2
_TOLERANCE = 1e-6  # what rounding on another kind of device makes of a sum stays below it


def is_compared(step: int) -> bool:
    """Whether all replicas' parameters are compared in a step: what parts them mostly does so in the first."""
    return step > 0 and (step & (step - 1) == 0 or step % 1024 == 0)


class Said(NamedTuple):
    """What one replica says at a vote, in numbers that others' zeros are added to.

    Attributes:
        next_epoch: The newest epoch that it has heard of.
        complete: From the next step on it holds the whole state.
        num_units: Units of the state that it, a newcomer, has been sent before its donor voted.
        settings: Of the optimizer's numbers, such as learning rates: the same everywhere, or something is wrong; 0
            where they are not known.
        sample: Sum of some of the parameters' values, likewise; 0 where nobody is to be compared.
    """

    next_epoch: float = 0.0
    complete: float = 0.0
    num_units: float = 0.0
    settings: float = 0.0
    sample: float = 0.0


_NUM_SAID = len(Said._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a vote summed up.

    Attributes:
        weight: Sum of the micro-batches' weights: what the summed gradients are to be divided by.
        loss: Weighted sum of their losses.
        used: For each parameter, whether some micro-batch used it.
        said: By replica.
    """

    weight: float
    loss: float
    used: tuple[bool, ...]
    said: dict[int, Said]

    @classmethod
    def of(cls, numbers: Sequence[float], num_parameters: int, replicas: Sequence[int] = ()) -> Self:
        """From the sum of what :func:`ballot` made.

        Args:
            numbers: The sum.
            num_parameters: How many parameters the model has.
            replicas: Who voted, ascending; nobody where what each said is of no interest.
        """
        rest = _NUM_SUMS + num_parameters
        said = {}
        for place, replica in enumerate(replicas):
            said[replica] = Said(*numbers[rest + _NUM_SAID * place : rest + _NUM_SAID * (place + 1)])
        used = tuple(number > 0 for number in numbers[_NUM_SUMS:rest])
        return cls(weight=numbers[0], loss=numbers[1], used=used, said=said)

    def check_alike(self, replica: int, proven: Iterable[int], step: int) -> None:
        """Compare what a replica said of its state with what most of those that are proven said of theirs.

        Raises:
            RuntimeError: They differ; one line with what to do.
        """
        others = [self.said[each] for each in sorted(proven) if each in self.said]
        mine = self.said[replica]
        if _usual(mine.settings, [each.settings for each in others]) is not None:
            raise RuntimeError(
                f"the optimizer's numbers, such as learning rates, are not those of the others in step {step}: set "
                "them alike everywhere, and give schedules to run.keep(schedule)"
            )
        if _usual(mine.sample, [each.sample for each in others]) is not None:
            raise RuntimeError(
                f"parameters here are not those of the others in step {step}: load the same checkpoint and do the same "
                "on all, and give run.keep() what a step goes by and neither optimizer.state nor its param_groups hold"
            )


def number_of(value: Any) -> float:
    """What one of an optimizer's settings adds to :attr:`Said.settings`."""
    if isinstance(value, Tensor):
        return float(value.detach().double().sum())
    if isinstance(value, tuple | list) and all(isinstance(each, int | float) for each in value):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) else 0.0


def _usual(mine: float, others: Iterable[float]) -> float | None:
    """What most others say, rather a number, where it is not the same as here and both are known; else the first's."""
    known = [each for each in others if each]

    def weight(one: float) -> tuple[bool, int]:
        return isfinite(one), sum(not _differ(one, other) for other in known)

    usual = max(known, key=weight, default=mine)
    return usual if mine and _differ(mine, usual) else None


def _differ(one: float, other: float) -> bool:
    return isnan(one) != isnan(other) or abs(one - other) > _TOLERANCE * max(abs(one), abs(other))


def ballot(weight: float, loss: Tensor, used: Sequence[bool], said: Iterable[Said]) -> Tensor:
    """What a replica puts into the vote, to be summed.

    Args:
        weight: Sum of the weights of the micro-batches that it ran.
        loss: Weighted sum of their losses, a scalar; the vote is on its device.
        used: For each parameter, whether they used it.
        said: By the places of those that vote. In a newcomer's, its donor gives the number of units; the others zeros.
    """
    rows = [float(number) for row in said for number in row]
    made = torch.tensor([weight, 0.0, *map(float, used), *rows], dtype=torch.float64, device=loss.device)
    made[1] = loss
    return made
