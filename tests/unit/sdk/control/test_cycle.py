"""What a rank does next, and how it gets to the step at which a plan goes on."""

import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.cycle import Action, RankCycle, Way
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

LAYOUT = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=1, num_micro_batches=2)


def plan(steps_applied: int, *, from_checkpoint: bool = False) -> Commit:
    mode = ApplyMode.RECOVER if steps_applied >= 0 else ApplyMode.BOUNDARY
    return Commit(
        reshape=Reshape(job_id="job", plan_id="plan", epoch=4, mode=mode, to_layout=LAYOUT),
        from_epoch=3,
        from_layout=LAYOUT,
        sources=(0, 1),
        steps_applied=steps_applied,
        from_checkpoint=from_checkpoint,
    )


def at_step(steps_applied: int, *, voted: bool = False, num_iterations: int = 100) -> RankCycle:
    cycle = RankCycle(0, 0, num_iterations)
    cycle.enter(3, steps_applied)
    if voted:
        cycle.vote()
    return cycle


@pytest.mark.parametrize(
    ("cycle", "commit", "held", "earlier", "way"),
    [
        pytest.param(at_step(7), plan(7), (3,), (), Way.THERE, id="at that step"),
        pytest.param(at_step(7, voted=True), plan(7), (3,), (), Way.THERE, id="nobody stepped"),
        pytest.param(at_step(7, voted=True), plan(8), (3,), (), Way.STEP, id="somebody heard the vote pass"),
        pytest.param(at_step(7), plan(8), (3,), (), Way.UNFIT, id="it did not vote"),
        pytest.param(at_step(7, voted=True), plan(9), (3,), (), Way.UNFIT, id="two steps ahead"),
        pytest.param(at_step(7), plan(6), (3,), (5, 6), Way.BACK, id="back to a copy's step"),
        pytest.param(at_step(7, voted=True), plan(6), (3,), (6,), Way.BACK, id="back, though it voted"),
        pytest.param(at_step(7), plan(6), (3,), (5,), Way.UNFIT, id="nothing to go back to"),
        pytest.param(at_step(7), plan(6), (2,), (), Way.THERE, id="it holds another epoch: it is read from others"),
        pytest.param(at_step(0), plan(6), (), (), Way.THERE, id="a joiner"),
        pytest.param(at_step(7, voted=True), plan(-1), (3,), (), Way.THERE, id="at a boundary"),
        pytest.param(at_step(7), plan(4, from_checkpoint=True), (3,), (), Way.THERE, id="from disk"),
    ],
)
def test_the_way_to_a_plans_step(
    cycle: RankCycle, commit: Commit, held: tuple[int, ...], earlier: tuple[int, ...], way: Way
) -> None:
    assert cycle.way_to(commit, held, earlier) is way
    assert cycle.voted == (way is Way.STEP), "a vote is over with its epoch, but for the step that it stands for"


def test_nobody_steps_without_having_voted() -> None:
    cycle = at_step(7)
    with pytest.raises(AssertionError, match="nobody steps"):
        cycle.stepped()
    cycle.vote()
    cycle.stepped()
    assert (cycle.steps_applied, cycle.voted) == (8, False)


def test_all_switch_when_all_carry_a_later_commit() -> None:
    cycle = at_step(7)
    assert cycle.epoch_after(3) is None
    assert cycle.epoch_after(4) == 4


def test_what_comes_next() -> None:
    cycle = RankCycle(0, 0, num_iterations=2)
    assert cycle.next_action(leaving=False) is Action.WAIT_FOR_PLAN
    cycle.enter(0, 1)
    assert cycle.next_action(leaving=False) is Action.ITERATE
    assert cycle.next_action(leaving=True) is Action.LEAVE
    cycle.vote()
    cycle.stepped()
    assert cycle.next_action(leaving=False) is Action.FAREWELL
    cycle.park(holds_anything=True)
    assert (cycle.phase, cycle.next_action(leaving=False)) == (RankPhase.PARKED, Action.WAIT_FOR_PLAN)
    cycle.park(holds_anything=False)
    assert cycle.phase is RankPhase.JOINING
    cycle.stand_by(1)
    assert (cycle.phase, cycle.left_for) == (RankPhase.JOINING, 1)
