import threading

from evenkeel.trainer_sdk.groups.building.graveyard import bury


class SlowGrave:
    """A group whose destruction blocks until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.buried_on: str | None = None

    def bury(self) -> None:
        self.begun.set()
        assert self.let_go.wait(60)
        self.buried_on = threading.current_thread().name


def test_a_group_that_blocks_holds_up_neither_the_caller_nor_the_groups_behind_it() -> None:
    stuck, quick = SlowGrave(), SlowGrave()
    quick.let_go.set()
    bury([stuck, quick])
    assert stuck.begun.wait(60)
    assert quick.begun.wait(60)
    assert stuck.buried_on is None
    stuck.let_go.set()
