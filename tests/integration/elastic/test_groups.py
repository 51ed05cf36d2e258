"""Process groups on a real store: what does not end by itself ends when it is told to."""

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch

from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import (
    GradientLedger,
    SummedStretch,
    Tally,
    ledger_to_texts,
    ledgers_from_texts,
)
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.group import Group, Reduction
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from tests.integration.elastic.rank_process import build, ended, fork, run_together

pytestmark = pytest.mark.integration

WORLD = GroupSpec(name="world", ranks=(0, 1))


CPU = torch.device("cpu")


def make_builder(rank: int, address: str, interrupted: Callable[[], bool] = lambda: False) -> GroupBuilder:
    return GroupBuilder(rank, Rendezvous(address, "job"), device=CPU, waiter=Waiter(interrupted))


def test_collectives_of_a_group_give_everybody_the_same(start_store: Callable[[], str]) -> None:
    address = start_store()

    def rank(place: int) -> None:
        groups, told = build(make_builder(place, address), 0, (0, 1), [WORLD], {"said": place})
        assert told == [{"said": 0}, {"said": 1}]
        group = groups["world"]
        summed = torch.tensor([1.0 + place, 2.0])
        group.all_reduce(summed)
        largest = torch.tensor([float(place)])
        group.all_reduce(largest, Reduction.MAX)
        assert summed.tolist() == [3.0, 4.0]
        assert largest.item() == 1.0
        assert group.all_gather(torch.tensor([place])).tolist() == [[0], [1]]
        sent = torch.full((4,), float(place))
        received = group.all_to_all(sent, [1, 3] if place == 0 else [2, 2], [1, 2] if place == 0 else [3, 2])
        assert received.tolist() == ([0.0, 1.0, 1.0] if place == 0 else [0.0, 0.0, 0.0, 1.0, 1.0])
        tensor = torch.tensor([7.0 if place == 1 else 0.0])
        group.start_broadcast(tensor, 1).wait()
        assert tensor.item() == 7.0

    assert run_together(rank, (0, 1)) == [0, 0]


@pytest.mark.parametrize("num_sums", [0, 1, 500])
def test_ledgers_of_any_length_reach_everybody(start_store: Callable[[], str], num_sums: int) -> None:
    address, names = start_store(), [f"parameter {index}" for index in range(500)]
    mine = {
        0: GradientLedger((), Tally(iteration=3, losses={1: 0.1 + 0.2})),
        1: GradientLedger(
            tuple([SummedStretch(name, 0, index + 1, index) for index, name in enumerate(names[:num_sums])]),
            Tally(iteration=3, sets=tuple([frozenset({0, index}) for index in range(num_sums)])),
        ),
    }

    def rank(place: int) -> None:
        groups = build(make_builder(place, address), 0, (0, 1), [WORLD], 0)[0]
        assembly = Assembly("world", (0, 1), 2, rank=place, groups=groups, device=CPU)
        assert ledgers_from_texts(assembly.gather(ledger_to_texts(mine[place], names)), names) == mine

    assert run_together(rank, (0, 1)) == [0, 0]


def test_an_interrupt_ends_a_meeting_to_which_nobody_comes(start_store: Callable[[], str]) -> None:
    address = start_store()

    def rank() -> None:
        flag = threading.Event()
        threading.Timer(0.1, flag.set).start()
        with pytest.raises(Interrupted):
            build(make_builder(0, address, flag.is_set), 0, (0, 1), [WORLD], 0)

    assert ended(fork(rank)) == 0


def test_an_interrupt_ends_a_build_whose_peer_died_after_the_meeting(start_store: Callable[[], str]) -> None:
    address, (heard, told) = start_store(), os.pipe()

    def dies() -> None:
        make_builder(1, address).meet(0, (0, 1), 0)

    def rank() -> None:
        flag = threading.Event()
        threading.Thread(target=lambda: (os.read(heard, 1), flag.set()), daemon=True).start()
        with pytest.raises(Interrupted):
            build(make_builder(0, address, flag.is_set), 0, (0, 1), [WORLD], 0)

    pids = [fork(dies), fork(rank)]
    assert ended(pids[0]) == 0, "they met"
    os.write(told, b"!")
    assert ended(pids[1]) == 0


class Stuck(GroupBuilder):
    """Its helper thread never gets to its part."""

    def connect(self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec) -> Group:
        threading.Event().wait()
        raise AssertionError("nothing sets it")


def test_who_waits_for_the_part_of_another_one_in_a_group_says_so_and_who_owes_it_does_not(
    start_store: Callable[[], str],
) -> None:
    address = start_store()

    def rank(place: int) -> None:
        mark, watching, builds = ProgressMark(), Rendezvous(address, "job"), (GroupBuilder, Stuck)[place]

        def is_seen() -> bool:
            if place == 0 and mark.newest[0] == "wait:others":
                watching.announce("waits", True)
            return watching.heard("waits")

        builder = builds(place, Rendezvous(address, "job"), device=CPU, waiter=Waiter(is_seen), progress=mark)
        builder.moved()
        with pytest.raises(Interrupted):
            builder.add(0, [WORLD])
        assert mark.newest[0] == ("wait:others", "reshaping")[place]

    assert run_together(rank, (0, 1)) == [0, 0]


def test_a_killed_peer_is_lost_and_a_new_epoch_works_while_the_old_group_is_abandoned(
    start_store: Callable[[], str],
) -> None:
    address = start_store()

    def rank(place: int) -> None:
        builder = make_builder(place, address)
        groups = build(builder, 0, (0, 1, 2), [GroupSpec(name="world", ranks=(0, 1, 2))], 0)[0]
        builder.meet(9, (0, 1, 2), 0)  # all are connected
        if place == 2:
            os._exit(0)
        with pytest.raises(PeerLost):
            groups["world"].all_reduce(torch.ones(1))
        builder.abandon(groups)
        value = torch.ones(1)
        build(builder, 1, (0, 1), [WORLD], 0)[0]["world"].all_reduce(value)
        assert value.item() == 2.0

    assert [ended(pid) for pid in [fork(lambda place=place: rank(place)) for place in range(3)]] == [0, 0, 0]


def test_a_hung_peer_holds_up_neither_the_interrupt_nor_the_next_epoch(start_store: Callable[[], str]) -> None:
    address = start_store()

    def rank(place: int) -> None:
        flag = threading.Event()
        builder = make_builder(place, address, flag.is_set)
        groups = build(builder, 0, (0, 1, 2), [GroupSpec(name="world", ranks=(0, 1, 2))], 0)[0]
        builder.meet(9, (0, 1, 2), 0)  # all are connected
        if place == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        threading.Timer(0.1, flag.set).start()
        with pytest.raises(Interrupted):
            groups["world"].all_reduce(torch.ones(1))
        flag.clear()
        builder.abandon(groups)
        value = torch.ones(1)
        build(builder, 1, (0, 1), [WORLD], 0)[0]["world"].all_reduce(value)
        assert value.item() == 2.0

    pids = [fork(lambda place=place: rank(place)) for place in range(3)]
    try:
        assert [ended(pid) for pid in pids[:2]] == [0, 0]
    finally:
        os.kill(pids[2], signal.SIGKILL)
        os.waitpid(pids[2], 0)


def test_a_group_beside_the_work_is_used_by_its_members_and_given_up_without_harm_to_the_wider_one(
    start_store: Callable[[], str],
) -> None:
    address = start_store()
    pair = GroupSpec(name="probe/1/0-2", ranks=(0, 2))
    alone = GroupSpec(name="probe/2/0-1", ranks=(0, 1))

    def rank(place: int) -> None:
        builder = make_builder(place, address)
        wide = build(builder, 0, (0, 1, 2), [GroupSpec(name="world", ranks=(0, 1, 2))], 0)[0]["world"]
        tired = threading.Event()
        if place == 0:
            builder.begin(0, alone, is_over=tired.is_set).give_up()  # to which nobody else comes
        if place in pair.ranks:
            side = builder.begin(0, pair, is_over=tired.is_set)
            Waiter(lambda: False).until(lambda: side.group is not None, 60.0, "the group beside the work")
            ball = torch.full((4,), float(place))
            side.group.start_broadcast(ball, 2).wait()
            assert ball.tolist() == [2.0] * 4
            if place == 0:
                threading.Timer(0.1, tired.set).start()
                with pytest.raises(Interrupted):
                    side.group.start_broadcast(ball, 2).wait()  # which rank 2 never sends
                side.give_up()
                assert side.group is None
        for _ in range(3):
            value = torch.ones(1)
            wide.all_reduce(value)
            assert value.item() == 3.0

    assert run_together(rank, (0, 1, 2)) == [0, 0, 0]


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Rendezvous("localhost", "job")
