"""Ranks that stand by while others train are never left behind by a plan that could not be carried out."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit
from evenkeel.trainer_sdk.elastic.program.topology import TRANSFER
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.store.store_links import StoreLinks
from tests.integration.elastic.reshapes.test_reshape import UNIFORM, assert_as_if_nothing_happened, config, without
from tests.integration.elastic.returns.test_copies import recover

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


def test_whoever_has_nothing_to_hand_over_stays_until_the_slowest_has_connected(
    start_fleet: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, multi_get = GroupBuilder.connect, StoreLinks.multi_get
    of_rank_7: list[GroupSpec] = []

    def heard(self: StoreLinks, keys: list[str]) -> list[bytes]:
        values = multi_get(self, keys)
        if of_rank_7 and of_rank_7[-1].name == TRANSFER:
            time.sleep(0.5)  # the others have its address, it connects to nobody yet
        return values

    def connecting(self: GroupBuilder, rendezvous: Rendezvous, epoch: int, spec: GroupSpec) -> Group:
        if self._rank == 7:
            of_rank_7.append(spec)
        return connect(self, rendezvous, epoch, spec)

    monkeypatch.setattr(GroupBuilder, "connect", connecting)
    monkeypatch.setattr(StoreLinks, "multi_get", heard)
    other_half = Layout(num_blocks=4, replicas=(replace(UNIFORM.replicas[1], num_micro_batches=4),), standbys=(0, 1, 3))
    fleet = start_fleet(config(8), UNIFORM)
    # Between two iterations nobody has sums that a survivor could want.
    fleet.pump_until(lambda: len(fleet.samples.get(2, ())) == 8, "iteration 2 on every rank", no_further_than=2)
    fleet.kill(2)
    fleet.recover(other_half)
    fleet.reached(max(fleet.samples) + 1)
    for rank in (0, 1, 3):
        assert fleet.ranks[rank].call("status").failed_epoch == 0
    fleet.finish()
    assert_as_if_nothing_happened(fleet, 8)
