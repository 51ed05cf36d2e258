"""What can go wrong in a job beside slow devices and links, put into a simulated run with its truth."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.simulator.job.signals import Signals, healthy_signals
from evenkeel.simulator.job.workload import Workload

Floats = NDArray[np.float64]


class Affliction(StrEnum):
    """What happens; the healthy and the planned are there to be left alone."""

    NONE = "none"
    INTERMITTENT = "intermittent"
    STAGE_IMBALANCE = "stage_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    INPUT_STALL = "input_stall"
    JITTER = "jitter"
    RANK_PAUSES = "rank_pauses"
    JOB_PAUSES = "job_pauses"
    PLANNED_PAUSES = "planned_pauses"
    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"
    GRADIENT_SPIKE = "gradient_spike"
    CORRUPTION = "corruption"
    SEVERAL = "several"


@dataclass(frozen=True, slots=True, kw_only=True)
class Afflicted:
    """The parts of a run that an affliction changes, and the truth.

    Attributes:
        model: Costs of the blocks.
        workload: Micro-batches.
        slowdown: Factor on each rank's compute, ``[iterations, ranks]``.
        pause_seconds: What every iteration takes beside its work, ``[iterations]``.
        signals: What is reported beside times.
        ranks: Whom it concerns; empty where it is the job or its workload.
        onset: First iteration that shows it.
    """

    model: ModelSpec
    workload: Workload
    slowdown: Floats
    pause_seconds: Floats
    signals: Signals
    ranks: tuple[int, ...] = ()
    onset: int = 0


def afflict(
    rng: np.random.Generator,
    what: Affliction,
    *,
    layout: Layout,
    model: ModelSpec,
    workload: Workload,
    iteration_seconds: float,
) -> Afflicted:
    """Draws one case of an affliction: whom, from when, and how bad.

    Args:
        rng: Source of randomness.
        what: The affliction.
        layout: Who holds what.
        model: Costs of the blocks.
        workload: Micro-batches, for as many iterations as the run has.
        iteration_seconds: About what an iteration takes; sizes pauses and stalls.
    """
    count, ranks = workload.tokens.shape[0], layout.ranks
    healthy = Afflicted(
        model=model,
        workload=workload,
        slowdown=np.ones((count, len(ranks))),
        pause_seconds=np.zeros(count),
        signals=healthy_signals(rng, count, len(ranks)),
    )
    victim = int(rng.integers(len(ranks)))
    onset = int(rng.integers(60, count // 2))
    if what is Affliction.NONE:
        return healthy
    if what is Affliction.STAGE_IMBALANCE:
        return replace(healthy, model=_heavier_head(rng, layout, model))
    if what is Affliction.SEQUENCE_IMBALANCE:
        return replace(healthy, workload=_longer_documents(rng, layout, workload))
    mine = replace(healthy, ranks=(ranks[victim],), onset=onset)
    if what in (Affliction.INTERMITTENT, Affliction.JITTER, Affliction.RANK_PAUSES):
        return replace(mine, slowdown=_uneven_speed(rng, what, mine.slowdown, victim, onset))
    if what in (Affliction.JOB_PAUSES, Affliction.PLANNED_PAUSES):
        return _paused(rng, what, replace(healthy, onset=onset), iteration_seconds)
    if what is Affliction.INPUT_STALL:
        return _stalled(rng, mine, victim, iteration_seconds)
    if what is Affliction.SEVERAL:
        second = (victim + 1 + int(rng.integers(len(ranks) - 1))) % len(ranks)
        slow = mine.slowdown.copy()
        slow[onset:, victim] *= rng.uniform(1.1, 1.5)
        stalled = _stalled(rng, replace(mine, slowdown=slow), second, iteration_seconds)
        return replace(stalled, ranks=(ranks[victim], ranks[second]))
    return _wrong_numbers(rng, what, mine, victim)


def _heavier_head(rng: np.random.Generator, layout: Layout, model: ModelSpec) -> ModelSpec:
    """The last stage's blocks are dearer: a large vocabulary that nobody made room for."""
    last = layout.replicas[0].stages[-1]
    factor = rng.uniform(1.3, 1.8)
    blocks = [
        replace(block, forward_flops_per_token=block.forward_flops_per_token * factor)
        if index >= last.first_block
        else block
        for index, block in enumerate(model.blocks)
    ]
    return replace(model, blocks=tuple(blocks))


def _longer_documents(rng: np.random.Generator, layout: Layout, workload: Workload) -> Workload:
    """One replica draws the long documents: most of its micro-batches are a few documents each."""
    chosen = layout.micro_batches_of(int(rng.integers(len(layout.replicas))))
    squares = workload.sum_of_squares.copy()
    columns = slice(chosen.start, chosen.stop)
    whole = workload.tokens[:, columns] ** 2
    squares[:, columns] = np.maximum(squares[:, columns], whole * rng.uniform(0.8, 1.0, whole.shape))
    return replace(workload, sum_of_squares=squares)


def _uneven_speed(rng: np.random.Generator, what: Affliction, slowdown: Floats, victim: int, onset: int) -> Floats:
    count = len(slowdown)
    since = np.arange(count) - onset
    if what is Affliction.INTERMITTENT:
        on, off = int(rng.integers(6, 16)), int(rng.integers(8, 16))
        slow, size = since % (on + off) < on, np.full(count, rng.uniform(1.2, 1.6))
    elif what is Affliction.JITTER:
        slow, size = rng.random(count) < rng.uniform(0.1, 0.2), rng.uniform(1.15, 1.5, count)
    else:
        slow, size = since % int(rng.integers(10, 21)) == 0, np.full(count, rng.uniform(1.15, 1.5))
    found = slowdown.copy()
    found[:, victim] *= np.where(slow & (since >= 0), size, 1.0)
    return found


def _paused(rng: np.random.Generator, what: Affliction, healthy: Afflicted, iteration_seconds: float) -> Afflicted:
    since = np.arange(len(healthy.pause_seconds)) - healthy.onset
    paused = (since >= 0) & (since % int(rng.integers(8, 17)) == 0)
    pause_seconds = np.where(paused, rng.uniform(0.5, 2.0) * iteration_seconds, 0.0)
    signals = healthy.signals
    if what is Affliction.PLANNED_PAUSES:
        signals = replace(signals, planned=paused)
    return replace(healthy, pause_seconds=pause_seconds, signals=signals)


def _stalled(rng: np.random.Generator, mine: Afflicted, victim: int, iteration_seconds: float) -> Afflicted:
    data = mine.signals.data_seconds.copy()
    count = len(data)
    stalls = (np.arange(count) >= mine.onset) & (rng.random(count) < rng.uniform(0.4, 1.0))
    data[stalls, victim] += rng.uniform(0.15, 0.6) * iteration_seconds
    return replace(mine, signals=replace(mine.signals, data_seconds=data))


def _wrong_numbers(rng: np.random.Generator, what: Affliction, mine: Afflicted, victim: int) -> Afflicted:
    losses, norms, onset = mine.signals.losses.copy(), mine.signals.gradient_norms.copy(), mine.onset
    ranks = mine.ranks
    if what is Affliction.NOT_FINITE:
        losses[onset:] = np.nan
        ranks = ()
    elif what is Affliction.LOSS_SPIKE:
        losses[onset : onset + 3] *= rng.uniform(1.5, 3.0)
        ranks = ()
    elif what is Affliction.GRADIENT_SPIKE:
        norms[onset : onset + 2] *= rng.uniform(40.0, 200.0)
        ranks = ()
    else:
        norms[onset:, victim] *= 1.0 + rng.uniform(0.005, 0.2)
    return replace(mine, ranks=ranks, signals=replace(mine.signals, losses=losses, gradient_norms=norms))
