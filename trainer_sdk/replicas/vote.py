"""The step vote: a small sum over replicas, queued behind the gradients' buckets, so that its passing proves them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

_NUM_SUMS = 2
_NUM_SAID = 4
_SETTINGS_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one replica says at a vote.

    Attributes:
        next_epoch: The newest epoch that it has heard of.
        complete: From the next step on it holds the whole state.
        num_units: Units of the state that it, a newcomer, has been sent before its donor voted.
        settings: Sum of the optimizer's numbers, such as learning rates: the same everywhere, or something is wrong.
    """

    next_epoch: int
    complete: bool
    num_units: int = 0
    settings: float = 0.0


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
            epoch, complete, units, settings = numbers[rest + _NUM_SAID * place : rest + _NUM_SAID * (place + 1)]
            said[replica] = Said(
                next_epoch=int(epoch), complete=bool(complete), num_units=int(units), settings=float(settings)
            )
        used = tuple(number > 0 for number in numbers[_NUM_SUMS:rest])
        return cls(weight=numbers[0], loss=numbers[1], used=used, said=said)

    def check_settings(self, mine: float, replicas: Iterable[int], step: int) -> None:
        """Compare the sum of an optimizer's numbers here with what these replicas said.

        Raises:
            RuntimeError: They differ.
        """
        for theirs in (self.said[each].settings for each in replicas if each in self.said):
            if abs(theirs - mine) > _SETTINGS_TOLERANCE * max(abs(theirs), abs(mine)):
                raise RuntimeError(
                    f"the optimizer's numbers, such as learning rates, add up to {mine:g} here and to {theirs:g} "
                    f"elsewhere in step {step}: give schedules to run.keep(schedule)"
                )


def ballot(
    weight: float,
    loss: Tensor,
    used: Sequence[bool],
    said: Said,
    *,
    sent: Mapping[int, int],
    place: int,
    num_replicas: int,
    device: torch.device,
) -> Tensor:
    """What a replica puts into the vote, to be summed.

    Args:
        weight: Sum of the weights of the micro-batches that it ran.
        loss: Weighted sum of their losses, a scalar.
        used: For each parameter, whether they used it.
        said: The rest, but for ``num_units``.
        sent: Units that this replica, a donor, has sent, by the newcomer's place.
        place: The replica's among those that vote.
        num_replicas: How many vote.
        device: Where the exchange's tensors live.
    """
    rows = [0.0] * (_NUM_SAID * num_replicas)
    rows[_NUM_SAID * place : _NUM_SAID * (place + 1)] = [float(said.next_epoch), float(said.complete), 0, said.settings]
    for newcomer, num_units in sent.items():
        rows[_NUM_SAID * newcomer + 2] = float(num_units)
    made = torch.tensor([weight, 0.0, *map(float, used), *rows], dtype=torch.float64, device=device)
    made[1] = loss
    return made
