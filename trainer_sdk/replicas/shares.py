"""Who runs which micro-batches of a step, and how a step goes on after a failure. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

from evenkeel.layouts.json_schema import record_from


class StateLostError(RuntimeError):
    """No replica that holds the whole state is left; only a checkpoint helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a rank of a replica is when an epoch begins.

    Attributes:
        replica: Its replica.
        index: Its rank within the replica.
        step: The step that it is in: that many votes have passed here, on every rank of the replica.
        done: Micro-batches of that step that are in its sums, and in nobody else's.
        complete: It holds the whole state.
        on_trial: It came later, and its state has not been compared after a step of all of it.
        synced: It has begun: it holds the job's initial state, or gets a later one.
        num_units: Units of the state that it has; of use where it is not complete.
        model: What it trains, in words that are the same where models are alike.
        last_vote: What the vote of step ``step - 1`` summed up; empty before the first, and where it was not heard.
    """

    replica: int
    step: int
    index: int = 0
    done: tuple[int, ...] = ()
    complete: bool = True
    on_trial: bool = False
    synced: bool = True
    num_units: int = 0
    model: str = ""
    last_vote: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What everybody makes of everybody's standing.

    Attributes:
        step: The newest step that somebody is in: the vote of the one before it has passed.
        last_vote: What that vote summed up; empty where it is not known, or where there was none.
        complete: Replicas that hold the whole state, ascending.
        proven: Those of them that are not on trial, or all where nobody else is left: they run the micro-batches.
        missing: Micro-batches of ``step`` that are in nobody's sums.
    """

    step: int
    last_vote: tuple[float, ...]
    complete: tuple[int, ...]
    proven: tuple[int, ...]
    missing: tuple[int, ...]


def settle(standings: Iterable[Standing], num_micro_batches: int, left: Iterable[Standing] = ()) -> Settlement:
    """How the members of an epoch go on.

    A vote that has passed for somebody has found all sums everywhere, so whoever did not hear it may step too. What
    somebody did for a step that others have finished counts nowhere: it is in the sums that were voted on.

    Args:
        standings: Of every rank of every member.
        num_micro_batches: Of a step.
        left: Of replicas that went away in order: what they heard counts, their sums do not.

    Raises:
        StateLostError: Nobody is complete.
    """
    standings = tuple(standings)
    heard = (*(each for each in standings if each.synced or each.complete), *left)
    complete = tuple(sorted({each.replica for each in standings if each.complete}))
    if not complete:
        raise StateLostError("no replica that holds the whole state is left: start the job again from a checkpoint")
    step = max(each.step for each in heard)
    on_trial = {each.replica for each in standings if each.on_trial}
    done = {index for each in standings if each.step == step for index in each.done}
    return Settlement(
        step=step,
        last_vote=next((each.last_vote for each in heard if each.step == step and each.last_vote), ()),
        complete=complete,
        proven=tuple(each for each in complete if each not in on_trial) or complete,
        missing=tuple(index for index in range(num_micro_batches) if index not in done),
    )


def check_alike(mine: Standing, standings: Iterable[Standing]) -> None:
    """Compare the model here with that of the first of those that hold the job's state.

    Raises:
        ValueError: They differ.
    """
    others = [each for each in standings if each.complete and each.index == mine.index]
    theirs = min(others, key=lambda each: (not each.synced, each.replica), default=mine)
    if mine.model != theirs.model:
        raise ValueError(
            f"replica {mine.replica} has another model than replica {theirs.replica}: {mine.model} here, "
            f"{theirs.model} there; names, shapes and types of all parameters, what is kept, and the number of "
            "micro-batches (EVENKEEL_NUM_REPLICAS where run.replicate() is not told one) must be the same"
        )


def share_out(micro_batches: Sequence[int], weights: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Each micro-batch to one replica, in proportion to the weights; consecutive ones to the same.

    Args:
        micro_batches: Their indices.
        weights: By replica; one without weight gets nothing. When they add up to the number of micro-batches, each
            replica gets as many as its weight.

    Raises:
        ValueError: No replica has any weight.
    """
    replicas, total = sorted(weights), sum(weights.values())
    if total <= 0:
        raise ValueError(f"weights {dict(weights)}: one replica at least must have some")
    # Largest remainders, the first replica before the later where they are equal.
    exact = {each: len(micro_batches) * weights[each] for each in replicas}
    counts = {each: exact[each] // total for each in replicas}
    by_remainder = sorted(replicas, key=lambda each: -(exact[each] % total))
    for each in by_remainder[: len(micro_batches) - sum(counts.values())]:
        counts[each] += 1
    borders = accumulate((counts[each] for each in replicas), initial=0)
    return {
        each: tuple(micro_batches[start:stop]) for each, (start, stop) in zip(replicas, pairwise(borders), strict=True)
    }


def standing_to_text(standing: Standing) -> str:
    """A standing as ranks tell it."""
    return json.dumps(asdict(standing))


def standing_from_text(text: str) -> Standing:
    """The inverse of :func:`standing_to_text`."""
    return record_from(Standing, json.loads(text))
