"""Votes in levels, on real processes: whoever dies at whatever moment of one, all step or nobody does.

Eight ranks in groups of two vote in three levels: (0 1) (2 3) (4 5) (6 7), then (0 2) (4 6), then (0 4). Rank 0 knows
the outcome when 4 does and tells 2, then 1; rank 2 tells 3; rank 4 tells 6, then 5; rank 6 tells 7.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from tests.integration.elastic.reshapes import test_reshape
from tests.integration.elastic.reshapes.test_reshape import (
    UNIFORM,
    assert_as_if_nothing_happened,
    config,
    replica,
    stage,
    without,
)
from tests.integration.elastic.returns import test_copies

pytestmark = pytest.mark.integration

VOTE = "wait:vote"


def in_levels(num_iterations: int, max_gradient_norm: float | None = None, vote_width: int = 2) -> TrainingConfig:
    return replace(config(num_iterations, max_gradient_norm), vote_width=vote_width)


@dataclass(frozen=True, kw_only=True)
class Death:
    """A rank dies when it begins its ``nth`` wait for a vote; the first is for its copies.

    Attributes:
        passes: Whether somebody hears the outcome, so that all have to step.
        untold: Who cannot have heard it.
    """

    rank: int
    nth: int
    moment: str
    passes: bool = False
    untold: tuple[int, ...] = ()


DEATHS = (
    Death(rank=1, nth=2, moment="a member, before it votes"),
    Death(rank=2, nth=3, moment="a leader that has its member's vote, before it tells the next level"),
    Death(rank=4, nth=4, moment="a leader of the last level, before it tells the other"),
    Death(
        rank=0,
        nth=6,
        moment="a leader that told one of its groups, before it tells the other",
        passes=True,
        untold=(1,),
    ),
    Death(rank=6, nth=5, moment="a leader that heard the outcome, before it tells anybody", passes=True, untold=(7,)),
    Death(rank=5, nth=3, moment="a member that voted, before it hears the outcome", passes=True),
    Death(rank=3, nth=3, moment="a member below a leader below another, likewise", passes=True),
)


def test_a_death_at_any_moment_of_a_vote_in_levels_leaves_all_with_the_step_or_nobody(start_fleet: Callable) -> None:
    fates = {
        death.rank: {"iteration": 3 + 4 * epoch, "epoch": epoch, "operation": VOTE, "nth": death.nth}
        for epoch, death in enumerate(DEATHS)
    }
    fleet = start_fleet(in_levels(30), UNIFORM, fates=fates)
    for epoch, death in enumerate(DEATHS):
        iteration = 3 + 4 * epoch
        fleet.mourn(death.rank)
        if death.passes:
            fleet.reached(iteration)
        reshape, states = fleet.prepare_recovery(UNIFORM)
        steps = {rank: state.steps_applied for rank, state in states.items()}
        assert set(steps.values()) <= {iteration, iteration + 1}, death.moment
        assert (max(steps.values()) > iteration) == death.passes, f"{death.moment}: {steps}"
        for rank in death.untold:
            assert steps[rank] == iteration, f"{death.moment}: {steps}"
            assert states[rank].voted, f"{death.moment}: who voted can step when others have"
        fleet.start_rank(death.rank, 1, None)
        joined = fleet.ranks[death.rank].call("prepare", reshape)
        fleet.commit_recovery(reshape, {**states, death.rank: joined}, {})
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 30)


def test_a_death_between_the_levels_of_the_clipping_norm_changes_no_loss(start_fleet: Callable) -> None:
    # The norm's waits come first: as many as the vote's without the copies'. So 5 is rank 0 before it tells rank 1.
    moments = {3: 2, 2: 2, 4: 4, 0: 5}
    fates = {
        rank: {"iteration": 3 + 4 * epoch, "epoch": epoch, "operation": VOTE, "nth": nth}
        for epoch, (rank, nth) in enumerate(moments.items())
    }
    fleet = start_fleet(in_levels(18, max_gradient_norm=0.5), UNIFORM, fates=fates)
    for rank, fate in fates.items():
        fleet.mourn(rank)
        fleet.start_rank(rank, 1, None)
        fleet.recover(UNIFORM)
        assert max(fleet.samples) == fate["iteration"] - 1, "nobody steps when one has not voted"
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 18, 0.5)


def test_a_leader_that_stops_between_two_levels_holds_up_nobody_who_is_told_to_go_on(start_fleet: Callable) -> None:
    fate = {"iteration": 5, "operation": VOTE, "nth": 3, "signal": signal.SIGSTOP}
    fleet = start_fleet(in_levels(9), UNIFORM, fates={4: fate})
    fleet.stopped(4)
    fleet.recover(without(4))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)


def test_a_leader_that_stops_when_it_told_some_leaves_the_others_to_catch_up(start_fleet: Callable) -> None:
    fate = {"iteration": 5, "operation": VOTE, "nth": 6, "signal": signal.SIGSTOP}
    fleet = start_fleet(in_levels(9), UNIFORM, fates={0: fate})
    fleet.stopped(0)
    fleet.reached(5)
    reshape, states = fleet.prepare_recovery(without(0))
    assert (states[1].steps_applied, states[1].voted) == (5, True)
    assert max(state.steps_applied for state in states.values()) == 6
    fleet.commit_recovery(reshape, states, {})
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 9)
    assert fleet.samples[5][1].loss is None, "rank 1 stepped without having heard the outcome"


@pytest.mark.parametrize(
    "scenario",
    [
        test_reshape.test_a_boundary_reshape_to_an_unequal_layout_and_back_changes_no_loss,
        test_reshape.test_a_kill_in_the_middle_of_a_reshape_is_one_more_recovery,
        test_reshape.test_kills_at_random_moments_with_clipping_change_no_loss,
        test_reshape.test_ranks_that_leave_hand_over_the_sums_of_what_they_finished,
        test_reshape.test_unequal_layouts_lose_only_what_the_dead_had,
        test_copies.test_replacements_that_follow_one_another_at_once_lose_nothing,
    ],
)
def test_what_holds_with_one_group_holds_in_levels(scenario: Callable, start_fleet: Callable) -> None:
    def start(config: TrainingConfig, *arguments: object, **options: object) -> object:
        return start_fleet(replace(config, vote_width=2), *arguments, **options)

    scenario(start)


def test_two_levels_of_unequal_groups_survive_a_death_and_a_switch(start_fleet: Callable) -> None:
    three = Layout(
        num_blocks=4,
        replicas=tuple(replica(n, stage(0, 4, (d,))) for d, n in enumerate((1, 1, 2))),
        standbys=(3, 4),
    )
    five = Layout(
        num_blocks=4,
        replicas=(replica(1, stage(0, 4, (0, 3))), replica(1, stage(0, 4, (1, 4))), replica(2, stage(0, 4, (2,)))),
    )
    fate = {"iteration": 9, "epoch": 1, "operation": VOTE, "nth": 2}
    fleet = start_fleet(in_levels(13, vote_width=3), three, others=(3, 4), fates={1: fate})
    fleet.reached(3)
    fleet.boundary(five)
    fleet.mourn(1)
    fleet.recover(replace(five, replicas=(five.replicas[0], replica(1, stage(0, 4, (4,))), five.replicas[2])))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 13)
