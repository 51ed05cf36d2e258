"""Mistakes that were made here before, or that one could make: each is put back, and the simulation finds it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from evenkeel.history.records import CulpritRecord
from evenkeel.history.vocabulary import PlanMode, PlanState, VerdictKind
from evenkeel.layouts import copies
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.dispatch import agreement, flight, restore
from evenkeel.services.scheduler.dispatch.flight import Flight
from evenkeel.services.scheduler.dispatch.protocol import Decision
from evenkeel.services.scheduler.domain import transitions
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.jobs import flights, planning
from evenkeel.services.scheduler.jobs.steps import Step
from evenkeel.services.scheduler.serving import job_life
from evenkeel.trainer_sdk.control.acceptor import Acceptor
from evenkeel.trainer_sdk.control.cycle import RankCycle
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from evenkeel.trainer_sdk.replicas.membership.plans import Plans
from tests.simulation import replicas
from tests.simulation.leases import Leases

Patches = list[tuple[Any, str, Any]]


def locked_out() -> Patches:
    """A plan that a rank was handed and could not apply kept it from every later one, and nobody else was told."""
    handed: dict[Acceptor, int] = {}

    def take(self: Acceptor, epoch: int | None = None, real: Any = Acceptor.take) -> Commit | None:
        commit: Commit | None = real(self, epoch)
        handed[self] = commit.reshape.epoch if commit else handed.get(self, 0)
        return commit

    def prepare(self: Acceptor, plan: Reshape, real: Any = Acceptor.prepare) -> None:
        waits = self.waiting is not None or handed.get(self, 0) > self.state.epoch
        if plan.mode is ApplyMode.BOUNDARY and waits:
            raise self._stale("another plan waits")
        real(self, plan)

    return [(Acceptor, "take", take), (Acceptor, "prepare", prepare), *deaf_to_failures(), *only_who_is_concerned()]


def deaf_to_failures() -> Patches:
    def told(self: Any, state: RankState, real: Any = flight._Landing.told) -> None:
        real(self, replace(state, failed_epoch=0))

    return [(flight._Landing, "told", told)]


def only_who_is_concerned() -> Patches:
    def made(**of: Any) -> Flight:
        concerned = {*of["known"].layout.ranks, *of["plan"].layout.ranks}
        return Flight(**{**of, "calls": {rank: calls for rank, calls in of["calls"].items() if rank in concerned}})

    return [(job_life, "Flight", made)]


def without_copies() -> Patches:
    return [(copies, "place_copies", lambda *_: ())]


def without_an_end() -> Patches:
    """A hand-over that is never said to have failed."""
    return [(Acceptor, "fail", lambda self, reason: None)]


def commit_before_it_is_durable() -> Patches:
    async def run(self: Flight, decided: Any, real: Any = Flight.run) -> int:
        async def beside(decision: Decision) -> None:
            finishing = asyncio.create_task(self.finish(decision))
            await decided(decision)
            finishing.cancel()

        return await real(self, beside)

    return [(Flight, "run", run)]


def history_takes_from_anybody() -> Patches:
    return [(Leases, "hold", lambda self, term: None)]


def not_told_that_it_is_off() -> Patches:
    """A plan comes to nothing, and those who were asked about it are left with it."""

    async def tell_nobody(self: Flight) -> None:
        pass

    return [(Flight, "_call_off", tell_nobody)]


def blames_the_successor() -> Patches:
    """A verdict about an earlier process of a rank counts against the one that is there now."""

    def is_current(job: JobKnowledge, culprit: CulpritRecord, kind: str, real: Any = transitions._is_current) -> Any:
        info = job.ranks.get(culprit.rank)
        is_stale = info is not None and culprit.incarnation < info.incarnation
        return (is_stale and kind != VerdictKind.REJOINED) or real(job, culprit, kind)

    return [(transitions, "_is_current", is_current)]


def listens_to_anybody() -> Patches:
    return [(Acceptor, "follow", lambda self, term: None)]


def told_twice() -> Patches:
    """A plan that is in force is said to have come to nothing as well."""

    def applied(step: Step, flight: Any, first_iteration: int, real: Any = flights.applied) -> None:
        real(step, flight, first_iteration)
        step.enter(flight.record, PlanState.ABORTED)

    return [(flights, "applied", applied)]


def taken_back_in_silence() -> Patches:
    def ground(step: Step, why: str) -> None:
        step.known = replace(step.known, flight=None)

    return [(flights, "ground", ground)]


def slow_for_ever() -> Patches:
    """The incident of a device that is healthy again stays open."""

    def resolve(self: Any, incidents: Any, detail: str, real: Any = transitions._Story.resolve) -> None:
        if "healthy again" not in detail:
            real(self, incidents, detail)

    return [(transitions._Story, "resolve", resolve)]


def dead_for_ever() -> Patches:
    """The incident of a rank that is back stays open."""

    def back(job: JobKnowledge, at: Any, real: Any = transitions.in_their_places) -> Any:
        return real(job, at)[0], []

    return [(transitions, "in_their_places", back)]


def left_idle() -> Patches:
    """Nobody counts a new process in."""
    return [(transitions, "_TAKEN", {**transitions._TAKEN, VerdictKind.REJOINED: lambda story, culprits: None})]


def trains_a_step_again() -> Patches:
    """Survivors meet a step before the newest at which they could, where all have it."""

    def find(states: Any, *, epoch: int, holders: Any, real: Any = restore.find_meeting, **of: Any) -> Any:
        found = real(states, epoch=epoch, holders=holders, **of)
        if found is None or found.stand_ins or found.lost:
            return found
        before = found.steps_applied - 1
        can = all(before in restore.steps_within_reach(states[rank], epoch) for rank in holders)
        return replace(found, steps_applied=before) if can else found

    return [(agreement, "find_meeting", find)]


def skips_a_step() -> Patches:
    def enter(self: RankCycle, epoch: int, steps: int, real: Any = RankCycle.enter) -> None:
        real(self, epoch, steps + (epoch > 0))

    return [(RankCycle, "enter", enter)]


def sums_twice() -> Patches:
    """After a failure replicas run all micro-batches of the step again, though they have kept their sums."""

    def settled(standings: Any, num_micro_batches: int, real: Any = replicas.settle) -> Any:
        return replace(real(standings, num_micro_batches), missing=tuple(range(num_micro_batches)))

    return [(replicas, "settle", settled)]


def steps_that_are_taken_back() -> Patches:
    """Replicas that have not heard of a step that others have applied go on without it."""

    def settled(standings: Any, num_micro_batches: int, real: Any = replicas.settle) -> Any:
        least = min(one.step for one in standings if one.complete)
        return replace(real(standings, num_micro_batches), step=least)

    return [(replicas, "settle", settled)]


def keeps_shares_to_itself() -> Patches:
    """A replica is given a plan of shares, and tells no other."""
    return [(Plans, "committed", lambda self: None)]


def asks_replicas_to_park() -> Patches:
    return [(planning, "_mode", lambda known, need: PlanMode(need.value))]


def tells_the_first_only() -> Patches:
    """In a large job not everybody hears of a decision."""

    def commits(self: Flight, *of: Any, real: Any = Flight._commits) -> Any:
        told = real(self, *of)
        for one in told[8:]:
            one.close()
        return told[:8]

    return [(Flight, "_commits", commits)]


MISTAKES: Mapping[Callable[[], Patches], int] = {
    locked_out: 0,
    without_copies: 6,
    without_an_end: 8,
    commit_before_it_is_durable: 0,
    history_takes_from_anybody: 7,
    not_told_that_it_is_off: 67,
    blames_the_successor: 54,
    listens_to_anybody: 106,
    told_twice: 0,
    taken_back_in_silence: 1,
    slow_for_ever: 2,
    dead_for_ever: 0,
    left_idle: 0,
    trains_a_step_again: 5,
    skips_a_step: 0,
    sums_twice: 1,
    steps_that_are_taken_back: 37,
    keeps_shares_to_itself: 1,
    asks_replicas_to_park: 1,
    tells_the_first_only: 9,
}
"""Each with the first seed that showed it when it was last looked for: the one to begin with."""


@contextmanager
def made(mistake: Callable[[], Patches]) -> Iterator[None]:
    """The mistake is made inside the block."""
    patches = [mock.patch.object(*patch) for patch in mistake()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
