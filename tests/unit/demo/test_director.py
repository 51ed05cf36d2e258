import asyncio

import pytest

from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.script.conditions import IterationsPassed, PlanReached, VerdictGiven
from evenkeel.demo.script.director import Director
from evenkeel.demo.script.scenario import Act, Step, choose_cast, script
from evenkeel.history.vocabulary import PlanState, VerdictKind
from tests.unit.demo.synthetic_run import Run


class World:
    """Hands on a synthetic run: what is done to it shows in the log, a little later, as it would in a job."""

    def __init__(self, run: Run, *, answers: bool = True) -> None:
        self.run = run
        self.answers = answers
        self.done: list[str] = []
        self.polls = 0
        self.broken = ""

    def slow(self, rank: int, speed: float) -> None:
        self.done.append(f"slow {rank} {speed}")
        kind = VerdictKind.RECOVERED if speed == 1.0 else VerdictKind.COMPUTE_SLOW
        if self.answers:
            self.run.verdict(kind, rank, speed)
            self.run.plan(predicted=0.5, bound=1.0, gain=1.0)
        self.run.train(12)

    def kill(self, rank: int) -> None:
        self.done.append(f"kill {rank}")
        self.run.speeds[rank] = 0.0
        self.run.train(3)

    def replace(self, rank: int) -> None:
        self.done.append(f"replace {rank}")
        self.run.speeds[rank] = 1.0
        self.run.train(3)

    def kill_service(self, name: str) -> None:
        self.done.append(f"kill {name}")
        self.run.train(4)

    def service_ready(self, name: str) -> bool:
        del name
        self.polls += 1
        return self.polls > 2

    def trouble(self) -> str:
        return self.broken


def play(world: World, *steps: Step, clock_step: float = 0.0) -> Director:
    now = [world.run.now]

    def clock() -> float:
        now[0] += clock_step
        return now[0]

    director = Director(world.run.log, world, clock=clock)
    asyncio.run(asyncio.wait_for(director.play(steps), timeout=100))
    return director


def test_a_step_is_over_when_all_its_conditions_hold() -> None:
    run = Run()
    run.train(5)
    step = Step(
        title="slow",
        act=Act.SLOW,
        rank=3,
        speed=0.5,
        until=(VerdictGiven(VerdictKind.COMPUTE_SLOW, 3), PlanReached(PlanState.APPLIED), IterationsPassed(4)),
    )
    director = play(World(run), step)
    assert [outcome.missing for outcome in director.outcomes] == [()]
    truth = director.truths[0]
    assert (truth.kind, truth.rank, truth.throughput, truth.iteration) == (TruthKind.COMPUTE_SLOW, 3, 0.5, 5)


def test_a_step_that_times_out_says_what_was_missing_and_the_next_one_is_played() -> None:
    run = Run()
    run.train(5)
    steps = (
        Step(
            title="slow",
            act=Act.SLOW,
            rank=3,
            speed=0.5,
            until=(VerdictGiven(VerdictKind.COMPUTE_SLOW, 3),),
            timeout_seconds=5.0,
        ),
        Step(title="look", act=Act.OBSERVE, until=(IterationsPassed(0),)),
    )
    director = play(World(run, answers=False), *steps, clock_step=0.5)
    assert director.outcomes[0].missing == ("a verdict that rank 3 is compute slow",)
    assert director.outcomes[1].step.title == "look"
    assert not any("not played" in text for text in director.outcomes[1].missing)


def test_the_rest_of_the_script_is_not_played_once_the_job_has_ended() -> None:
    run = Run()
    run.train(5)
    world = World(run)
    world.broken = "the job ended with status 1"
    steps = (
        Step(title="look", act=Act.OBSERVE, until=(IterationsPassed(100),)),
        Step(title="kill", act=Act.KILL_RANK, rank=1, until=(IterationsPassed(1),)),
    )
    director = play(world, *steps)
    assert director.outcomes[1].missing == ("not played: the job ended with status 1",)
    assert world.done == []


def test_a_killed_service_must_be_ready_again_before_the_step_is_over() -> None:
    run = Run()
    run.train(5)
    world = World(run)
    director = play(world, Step(title="kill", act=Act.KILL_SCHEDULER, until=(IterationsPassed(2),)))
    assert world.done == ["kill scheduler"]
    assert world.polls > 2
    assert director.outcomes[0].missing == ()


def test_a_replacement_is_the_next_incarnation_of_its_rank() -> None:
    run = Run()
    run.train(5)
    steps = (
        Step(title="kill", act=Act.KILL_RANK, rank=6, until=(IterationsPassed(1),)),
        Step(title="replace", act=Act.REPLACE_RANK, rank=6, until=(IterationsPassed(1),)),
    )
    director = play(World(run), *steps)
    assert [(truth.kind, truth.incarnation, truth.throughput) for truth in director.truths] == [
        (TruthKind.FAIL_STOP, 0, 0.0),
        (TruthKind.REJOINED, 1, 1.0),
    ]


def test_the_same_seed_hits_the_same_three_different_ranks() -> None:
    cast = choose_cast(11, 8)
    assert cast == choose_cast(11, 8)
    assert len({cast.slow, cast.killed, cast.slow_later}) == 3
    assert len({choose_cast(seed, 8) for seed in range(40)}) > 20
    with pytest.raises(ValueError, match="at least 3"):
        choose_cast(0, 2)


def test_the_script_does_all_that_the_demo_promises() -> None:
    acts = [step.act for step in script(choose_cast(0, 8), 8)]
    assert acts == [
        Act.OBSERVE,
        Act.LONG_DOCUMENTS,
        Act.SLOW,
        Act.HEAL,
        Act.KILL_RANK,
        Act.REPLACE_RANK,
        Act.KILL_DETECTOR,
        Act.KILL_SCHEDULER,
        Act.SLOW,
    ]
