"""A group beside the work: there once it is built, freed whenever it is given up."""

import threading

from evenkeel.trainer_sdk.groups.building.side_group import SideGroup
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.waiting import Waiter

DEADLINE_SECONDS = 60.0


class Yard:
    """Notes which groups were abandoned."""

    def __init__(self) -> None:
        self.abandoned: list[Group] = []
        self.came = threading.Event()

    def __call__(self, groups: tuple[Group, ...]) -> None:
        self.abandoned += groups
        self.came.set()


def group() -> Group:
    return Group("probe", (0, 1), 0, None, Waiter(lambda: False))


def test_it_is_there_once_it_is_built_and_freed_when_it_is_given_up() -> None:
    built, yard = group(), Yard()
    side = SideGroup(lambda: built, yard)
    assert side.wait() is built
    assert (side.error, yard.abandoned) == ("", [])
    side.give_up()
    assert side.group is None
    assert yard.abandoned == [built]


def test_given_up_while_it_is_built_it_is_freed_when_it_is_there() -> None:
    built, yard, go = group(), Yard(), threading.Event()

    def connect() -> Group:
        assert go.wait(DEADLINE_SECONDS)
        return built

    side = SideGroup(connect, yard)
    side.give_up()
    assert not yard.abandoned
    go.set()
    assert yard.came.wait(DEADLINE_SECONDS)
    assert yard.abandoned == [built]
    assert side.group is side.wait() is None


def test_a_member_who_does_not_come_is_an_error_and_no_group() -> None:
    def connect() -> Group:
        raise RuntimeError("wait timeout")

    side = SideGroup(connect, yard := Yard())
    assert side.wait() is None
    assert (side.error, side.group) == ("wait timeout", None)
    side.give_up()
    assert not yard.abandoned
