"""The store is killed at the worst moments, and comes back empty: nobody dies of it, and no loss changes."""

import os
from collections.abc import Callable, Sequence

import pytest
import torch

from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.errors import Interrupted
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.launcher.processes.context import JOB_FINISHED
from tests.integration.elastic.kept_store import KeptStore, StoreFate
from tests.integration.elastic.rank_process import build, ended, fork, run_together
from tests.integration.elastic.reshapes.test_reshape import UNIFORM, assert_as_if_nothing_happened, config, without

pytestmark = pytest.mark.integration

PATIENT = Waiter(lambda: False)
LONG_SECONDS = 100.0


def await_heard(rendezvous: Rendezvous, *names: str) -> None:
    PATIENT.until(lambda: all(rendezvous.heard(name) for name in names), LONG_SECONDS, f"hear {names}")


def test_who_says_nothing_more_is_still_heard_in_later_stores(keep_store: Callable[[], KeptStore]) -> None:
    store = keep_store()
    (told, tell), (asked, ask) = os.pipe(), os.pipe()

    def speaker() -> None:
        rendezvous = Rendezvous(store.address, "job")
        rendezvous.announce("early", 1)
        rendezvous.announce("epoch/3/ready/0/0", 2)
        rendezvous.announce("epoch/4/ready/0/0", 3)
        rendezvous.forget("epoch/3/")
        await_heard(rendezvous, "early")
        os.write(tell, b"!")
        os.read(asked, 1)  # computes meanwhile

    def listener() -> None:
        os.read(told, 1)
        rendezvous = Rendezvous(store.address, "job")
        for _ in range(2):
            await_heard(rendezvous, "early", "epoch/4/ready/0/0")
            store.kill()
            PATIENT.until(lambda: not rendezvous.heard("early"), LONG_SECONDS, "it is away")
            await_heard(rendezvous, "early", "epoch/4/ready/0/0")
            assert not rendezvous.heard("epoch/3/ready/0/0"), "which was forgotten"
            assert rendezvous.read("epoch/4/ready/0", [0]) == {0: 3}
        os.write(ask, b"!")

    assert [ended(pid) for pid in [fork(speaker), fork(listener)]] == [0, 0]


def test_without_a_store_nobody_is_held_up_and_an_interrupt_ends_a_meeting(keep_store: Callable[[], KeptStore]) -> None:
    store = keep_store()

    def rank() -> None:
        rendezvous = Rendezvous(store.address, "job")
        rendezvous.announce("there", 0)
        await_heard(rendezvous, "there")
        store.pause()
        PATIENT.until(lambda: not rendezvous.heard("there"), LONG_SECONDS, "it is away")
        rendezvous.announce("meanwhile", 0)
        looks = iter(range(100))
        with pytest.raises(Interrupted):
            rendezvous.meet(
                "meeting", 0, (0, 1), 0, waiter=Waiter(lambda: next(looks) == 50), timeout_seconds=LONG_SECONDS
            )
        joiner = Rendezvous(store.address, "job")  # that starts while there is none
        assert not joiner.heard("there")
        store.resume()
        await_heard(joiner, "there", "meanwhile", "meeting/0/0")

    assert ended(fork(rank)) == 0


@pytest.mark.parametrize("widest", [2, 8])
def test_groups_are_met_for_and_built_through_deaths_of_the_store(
    widest: int, keep_store: Callable[[], KeptStore]
) -> None:
    store, ranks = keep_store(), tuple(range(5))
    specs = [
        GroupSpec(name="all", ranks=ranks),
        GroupSpec(name="some", ranks=(1, 3)),
        GroupSpec(name="end", ranks=ranks),
    ]

    class Killing(GroupBuilder):
        """Kills the store before it builds a group."""

        doomed: Sequence[str] = ()

        def connect(self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec):
            if spec.name in self.doomed:
                store.kill()
            return super().connect(rendezvous, epoch, spec)

    def rank(place: int) -> None:
        builder = Killing(
            place, Rendezvous(store.address, "job"), device=torch.device("cpu"), waiter=PATIENT, widest=widest
        )
        for epoch in (0, 1):
            if place == epoch:
                store.kill()
            builder.doomed = {0: ["all"], 3: ["some"], 4: ["end"]}.get(place, [])
            groups, told = build(builder, epoch, ranks, specs, [epoch, place % 2])
            assert told == [[epoch, 0], [epoch, 1]]
            for group in groups.values():
                value = torch.ones(1)
                group.all_reduce(value)
                assert value.item() == len(group.ranks)
            builder.abandon(groups)

    assert run_together(rank, ranks) == [0] * len(ranks)
    assert store.num_starts > 4


def test_who_says_farewell_last_hears_that_the_job_is_finished_from_those_who_saw_the_others_leave(
    keep_store: Callable[[], KeptStore],
) -> None:
    store = keep_store()

    def early() -> None:
        Rendezvous(store.address, "job").announce("farewell/0", 0)

    assert ended(fork(early)) == 0
    store.job_finished()
    store.kill()

    def late() -> None:
        rendezvous = Rendezvous(store.address, "job")
        await_heard(rendezvous, JOB_FINISHED)
        assert not rendezvous.heard("farewell/0")

    assert ended(fork(late)) == 0


def test_a_store_that_dies_whenever_it_is_needed_kills_no_rank_and_changes_no_loss(start_fleet: Callable) -> None:
    fates = {
        0: [StoreFate(method="meet", epoch=0), StoreFate(method="connect", epoch=1)],
        2: [StoreFate(method="connect", epoch=0, nth=2), StoreFate(method="_await", epoch=1)],
        3: [StoreFate(method="connect", epoch=2, nth=3), StoreFate(method="meet", epoch=3)],
        5: [StoreFate(method="meet", epoch=1, after=True), StoreFate(method="meet", epoch=3, nth=2)],
        7: [StoreFate(method="_await", epoch=2), StoreFate(method="meet", epoch=3, nth=2, after=True)],
    }
    fleet = start_fleet(config(16), UNIFORM, store_fates=fates)
    fleet.reached(1)
    fleet.store.kill()  # while everybody computes
    fleet.reached(max(fleet.samples) + 2)
    fleet.store.kill()  # together with a rank
    fleet.kill(1)
    reshape, states = fleet.prepare_recovery(without(1))
    fleet.store.kill()
    fleet.commit_recovery(reshape, states, {})
    fleet.reached(max(fleet.samples) + 1)
    fleet.start_rank(1, 1, None)
    fleet.store.kill()  # while it joins
    fleet.boundary(UNIFORM)
    fleet.pump_until(lambda: any(1 in of and of[1].place.epoch == 2 for of in fleet.samples.values()), "rank 1 is back")
    fleet.kill(6)
    fleet.recover(without(6))
    fleet.finish()

    assert_as_if_nothing_happened(fleet, 16)
    assert fleet.store.num_starts > 8
