"""Replicas of a training loop of the user's own: any of them may die, and comes back, while the others train."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.replicas.buckets import local
from evenkeel.trainer_sdk.replicas.epochs import Epochs
from evenkeel.trainer_sdk.replicas.fitness import advice, check_model
from evenkeel.trainer_sdk.replicas.loop import Replicas
from evenkeel.trainer_sdk.replicas.membership.director import Director
from evenkeel.trainer_sdk.replicas.membership.patience import Patience
from evenkeel.trainer_sdk.replicas.membership.plans import Plans
from evenkeel.trainer_sdk.replicas.place import Mates, Place
from evenkeel.trainer_sdk.replicas.state.training_state import Kept, TrainingState

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.control.mailbox import Mailbox

__all__ = ["Kept", "Place", "Replicas", "join_replicas"]

_log = logging.getLogger("evenkeel.replicas")


def join_replicas(
    place: Place,
    model: nn.Module,
    *,
    num_micro_batches: int = 0,
    seed: int = 0,
    kept: Sequence[Kept] = (),
    mailbox: "Mailbox | None" = None,
) -> Replicas:
    """This process's part in a job of replicas; it meets the others at its first micro-batch.

    Args:
        place: Which rank of which replica this is.
        model: Its model.
        num_micro_batches: Of a step, over all replicas; 0 = one for each replica.
        seed: Of the noise in micro-batches, such as dropout.
        kept: What a newcomer needs beside model and optimizer; may be a list that grows until the first micro-batch.
        mailbox: Where the scheduler's plans arrive; None without one.

    Raises:
        ValueError: The model cannot be used.
    """
    check_model(model)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if place.index == 0 and (line := advice(model, place.size)):
        _log.warning(line)
    num_micro_batches = num_micro_batches or place.num_replicas
    if place.rank == 0 and num_micro_batches < place.num_replicas:
        told = "%d replicas share %d micro-batches in a step, so some have none: give each one at least"
        _log.warning(told, place.num_replicas, num_micro_batches)
    mates = Mates(place)
    director = Director(mates.rendezvous, place, mates.token)
    patience = Patience(mates.rendezvous, director, place)
    device = local(parameters[0]).device
    builder = GroupBuilder(place.rank, mates.rendezvous, device=device, waiter=Waiter(patience.interrupted))
    plans = None if mailbox is None else Plans(mailbox, num_micro_batches)
    return Replicas(
        parameters,
        TrainingState(model, kept),
        Epochs(place, director, builder, mates, patience, plans),
        num_micro_batches=num_micro_batches,
        seed=seed,
    )
