"""A text that is chosen stays chosen, whoever proposes, in whatever order, and whichever stores answer."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.groups.store.quorum import Proposal, Register

PROPOSERS = 3


class Stores:
    """Registers as texts; each proposer's newest change reaches a store when it is its turn, or never."""

    def __init__(self, number: int) -> None:
        self.texts = [""] * number
        self.majority = number // 2 + 1

    def change(self, place: int, change: Callable[[Register], Register]) -> Register:
        register = change(Register.from_text(self.texts[place]))
        self.texts[place] = register.to_text()
        return register


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, bool]]]:
    """Number of stores; who asks which store next, and whether the answer comes back."""
    number = draw(st.sampled_from([1, 2, 3, 5]))
    who = st.tuples(st.integers(0, PROPOSERS - 1), st.integers(0, number - 1), st.booleans() | st.just(True))
    return number, draw(st.lists(who, min_size=6, max_size=120))


def run(number: int, asked: list[tuple[int, int, bool]]) -> list[str]:
    """What was chosen, in the order in which proposers heard it."""
    stores = Stores(number)
    proposals = [Proposal(f"p{each}", f"text {each}") for each in range(PROPOSERS)]
    heard: list[dict[int, Register]] = [{} for _ in proposals]
    chosen = []
    for who, place, answered in asked:
        register = stores.change(place, proposals[who].change)
        if answered:
            heard[who][place] = register
        if len(heard[who]) >= stores.majority:
            text = proposals[who].heard(heard[who].values())
            heard[who] = {}
            if text is not None:
                chosen.append(text)
                proposals[who] = Proposal(f"p{who}+{len(chosen)}", f"late text {len(chosen)}")
    return chosen


@given(steps())
def test_everybody_hears_the_same(case: tuple[int, list[tuple[int, int, bool]]]) -> None:
    assert len(set(run(*case))) <= 1


def test_one_on_its_own_gets_its_text() -> None:
    assert run(1, [(0, 0, True)] * 2) == ["text 0"]
    assert run(3, [(0, 0, True), (0, 2, True), (0, 2, True), (0, 1, True)]) == ["text 0"]


def test_less_than_a_majority_chooses_nothing() -> None:
    assert run(3, [(0, 0, True)] * 20) == []


def test_who_comes_later_hears_what_was_chosen_though_only_one_store_tells_of_it() -> None:
    first = [(0, place, True) for place in (0, 1, 0, 1)]
    second = [(1, place, True) for place in (1, 2)] * 3
    assert run(3, first + second) == ["text 0", "text 0"]
