"""Ranks that stand by while others train are never left behind by a plan that could not be carried out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit
from tests.integration.elastic.test_copies import recover
from tests.integration.elastic.test_reshape import UNIFORM, assert_as_if_nothing_happened, config, without

pytestmark = pytest.mark.integration

HALF = Layout(num_blocks=4, replicas=(replace(UNIFORM.replicas[0], num_micro_batches=4),), standbys=(4, 5, 7))


def test_a_replacement_that_dies_before_its_first_step_locks_nobody_out(start_fleet: Callable) -> None:
    fleet = start_fleet(config(16), UNIFORM)
    fleet.reached(2)
    fleet.kill(6)
    fleet.recover(HALF)
    fleet.reached(max(fleet.samples) + 1)

    fleet.start_rank(6, 1, None)
    fleet.epoch += 1
    with_the_joiner = fleet._reshape(ApplyMode.BOUNDARY, UNIFORM)
    fleet._ask(UNIFORM.ranks, "prepare", with_the_joiner)
    fleet.kill(6)
    commit = Commit(reshape=with_the_joiner, from_epoch=1, from_layout=HALF, sources=HALF.ranks)
    fleet._ask(sorted(fleet.ranks), "commit", commit)

    fleet.epoch += 1
    recovery = fleet._reshape(ApplyMode.RECOVER, HALF)
    fleet.commit_recovery(recovery, fleet._ask(HALF.ranks, "prepare", recovery), {})
    fleet.reached(max(fleet.samples) + 1)

    fleet.epoch += 1
    answers = fleet._ask((4, 5, 7), "prepare", fleet._reshape(ApplyMode.BOUNDARY, without(6)))
    for state in answers.values():
        assert (state.failed_epoch, state.phase) == (2, RankPhase.JOINING) or state.pending_epoch == 2, state
    recover(fleet, without(6), {0: UNIFORM, 1: HALF, 2: UNIFORM, 3: HALF})
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 16)
    assert {4, 5, 7} <= fleet.samples[15].keys()
