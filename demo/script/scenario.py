"""The script of the demo as data: what is done to whom, and what must be seen before the next step. Pure.

Steps a to f of the closed loop: healthy learning and a stretch of long documents; one slow device; its recovery; a
killed rank; its replacement; both deciding services killed, and one more failure that they must still handle.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from evenkeel.demo.script.conditions import (
    Condition,
    DetectorCaughtUp,
    IterationReached,
    IterationsPassed,
    IterationsUnderNewEpoch,
    PlanReached,
    ShapeReached,
    VerdictGiven,
)
from evenkeel.history.vocabulary import PlanState, VerdictKind


class Act(StrEnum):
    """What a step does at its beginning."""

    OBSERVE = "observe"
    LONG_DOCUMENTS = "long_documents"
    SLOW = "slow"
    HEAL = "heal"
    KILL_RANK = "kill_rank"
    REPLACE_RANK = "replace_rank"
    KILL_DETECTOR = "kill_detector"
    KILL_SCHEDULER = "kill_scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the script.

    Attributes:
        title: For a person.
        act: What is done when the step begins.
        delay_seconds: After the step before it, until this one begins.
        rank: To whom; None when to no rank.
        speed: For SLOW: the device's new speed relative to healthy.
        until: All of these must hold before the next step begins.
        timeout_seconds: After so long the step counts as failed and the script goes on.
    """

    title: str
    act: Act
    until: tuple[Condition, ...]
    rank: int | None = None
    speed: float | None = None
    delay_seconds: float = 0.0
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Who is hit: three different ranks, chosen by seed."""

    slow: int
    killed: int
    slow_later: int


LONG_DOCUMENTS = range(34, 42)
"""Iterations whose documents are unusually long: part of the job's workload, so the reference run has them too."""
FIRST_SPEED = 0.5
SECOND_SPEED = 0.6


def choose_cast(seed: int, num_ranks: int) -> Cast:
    """The victims of one seed.

    Raises:
        ValueError: Fewer than three ranks.
    """
    if num_ranks < 3:
        raise ValueError(f"the scenario hits 3 different ranks, but the job has {num_ranks}: use at least 3")
    slow, killed, slow_later = random.Random(seed).sample(range(num_ranks), 3)  # noqa: S311 (not a secret)
    return Cast(slow=slow, killed=killed, slow_later=slow_later)


def script(cast: Cast, num_ranks: int) -> tuple[Step, ...]:
    """The steps for one cast."""
    return (
        Step(
            title="healthy: the detector learns what this job should cost",
            act=Act.OBSERVE,
            until=(IterationReached(LONG_DOCUMENTS.start - 1),),
            timeout_seconds=180.0,
        ),
        Step(
            title="a stretch of unusually long documents: workload, not failure",
            act=Act.LONG_DOCUMENTS,
            until=(IterationReached(LONG_DOCUMENTS.stop + 3),),
        ),
        Step(
            title=f"the device of rank {cast.slow} drops to {FIRST_SPEED} of its speed",
            act=Act.SLOW,
            rank=cast.slow,
            speed=FIRST_SPEED,
            until=(
                VerdictGiven(VerdictKind.COMPUTE_SLOW, cast.slow),
                IterationsUnderNewEpoch(10),
                PlanReached(PlanState.MEASURED),
            ),
        ),
        Step(
            title=f"the device of rank {cast.slow} recovers",
            act=Act.HEAL,
            rank=cast.slow,
            until=(
                VerdictGiven(VerdictKind.RECOVERED, cast.slow),
                IterationsUnderNewEpoch(8),
                PlanReached(PlanState.MEASURED),
            ),
        ),
        Step(
            title=f"kill -9 of rank {cast.killed}",
            act=Act.KILL_RANK,
            rank=cast.killed,
            until=(
                VerdictGiven(VerdictKind.FAIL_STOP, cast.killed),
                IterationsUnderNewEpoch(10),
                ShapeReached(num_ranks - 1),
                PlanReached(PlanState.MEASURED),
            ),
        ),
        Step(
            title=f"a replacement process for rank {cast.killed} starts",
            act=Act.REPLACE_RANK,
            rank=cast.killed,
            until=(
                VerdictGiven(VerdictKind.REJOINED, cast.killed),
                IterationsUnderNewEpoch(10),
                ShapeReached(num_ranks),
                PlanReached(PlanState.MEASURED),
            ),
        ),
        Step(
            title="kill -9 of the detector",
            act=Act.KILL_DETECTOR,
            until=(IterationsPassed(3), DetectorCaughtUp()),
        ),
        Step(
            title="kill -9 of the scheduler",
            act=Act.KILL_SCHEDULER,
            until=(IterationsPassed(6),),
        ),
        Step(
            title=f"the next failure: the device of rank {cast.slow_later} drops to {SECOND_SPEED} of its speed",
            act=Act.SLOW,
            rank=cast.slow_later,
            speed=SECOND_SPEED,
            until=(
                VerdictGiven(VerdictKind.COMPUTE_SLOW, cast.slow_later),
                IterationsUnderNewEpoch(10),
                PlanReached(PlanState.MEASURED),
            ),
        ),
    )
