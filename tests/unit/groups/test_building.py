"""Groups in the making: there once they are built, freed whenever they are given up."""

import threading

from evenkeel.trainer_sdk.groups.building.builder import GroupSpec
from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.waiting import Waiter

DEADLINE_SECONDS = 60.0
ONE, TWO = (GroupSpec(name=name, ranks=(0, 1)) for name in ("probe", "other"))


class Noted(Group):
    """Notes when it is freed."""

    def __init__(self, spec: GroupSpec) -> None:
        super().__init__(spec.name, spec.ranks, 0, None, Waiter(lambda: False))
        self.buried = threading.Event()

    def bury(self) -> None:
        self.buried.set()


def test_they_are_there_once_they_are_built_and_freed_when_they_are_given_up() -> None:
    built = [Noted(ONE), Noted(TWO)]
    building = Building([ONE, TWO], lambda spec: built[spec is TWO])
    assert building.wait() is building.group is built[0]
    assert list(building.groups.values()) == built
    assert building.has(2)
    assert not any(each.buried.is_set() for each in built)
    building.give_up()
    assert all(each.buried.wait(DEADLINE_SECONDS) for each in built)
    assert building.group is building.error is None


def test_given_up_while_they_are_built_what_is_there_is_freed_and_what_is_not_is_not_begun() -> None:
    built, go, asked = Noted(ONE), threading.Event(), []

    def connect(spec: GroupSpec) -> Group:
        asked.append(spec)
        assert go.wait(DEADLINE_SECONDS)
        return built

    building = Building([ONE, TWO], connect)
    assert not building.has(1)
    building.give_up()
    assert building.wait() is None
    assert not built.buried.is_set()
    go.set()
    assert built.buried.wait(DEADLINE_SECONDS)
    assert asked == [ONE]
    assert not building.groups


def test_a_member_who_does_not_come_is_an_error_and_ends_it() -> None:
    first = Noted(ONE)

    def connect(spec: GroupSpec) -> Group:
        if spec is ONE:
            return first
        raise RuntimeError("wait timeout")

    building = Building([ONE, TWO], connect)
    assert building.wait() is first
    assert (str(building.error), building.has(2)) == ("wait timeout", True)
    building.give_up()
    assert first.buried.wait(DEADLINE_SECONDS)
