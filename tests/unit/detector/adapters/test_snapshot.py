"""What is stored of a tree of dataclasses comes back as it was, to the bit; what is not one of it is refused."""

import math
import zlib
from dataclasses import dataclass, field, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evenkeel.services.detector.adapters.snapshot import SnapshotError, dump, load
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Word:
    colour: Colour
    ranks: tuple[int, ...]
    nats: float = 0.5


@dataclass(eq=False)
class Course:
    incarnation: int
    spells: list[list[float]] = field(default_factory=list)
    held: Word | None = None


@dataclass(eq=False)
class Tree:
    budget: float = field(default=1.0, metadata=GIVEN)
    cache: object = field(default=None, metadata=DERIVED)
    count: int = 0
    is_told: bool = False
    name: str = ""
    scale: float = math.nan
    numbers: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    singles: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.float32))
    flags: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    of_rank: dict[int, tuple[int, str]] = field(default_factory=dict)
    of_pair: dict[tuple[str, str], npt.NDArray[np.float64]] = field(default_factory=dict)
    courses: dict[int, Course] = field(default_factory=dict)
    members: frozenset[int] = frozenset()
    pair: tuple[Course, Word] | None = None


floats = st.floats(allow_nan=True)
words = st.builds(Word, colour=st.sampled_from(Colour), ranks=st.lists(st.integers(0, 9)).map(tuple), nats=floats)
courses = st.builds(
    Course, st.integers(), spells=st.lists(st.lists(floats, max_size=3), max_size=3), held=st.none() | words
)
shapes = arrays.array_shapes(max_dims=3, min_side=0, max_side=4)
trees = st.builds(
    Tree,
    count=st.integers(),
    is_told=st.booleans(),
    name=st.text(),
    scale=floats,
    numbers=arrays.arrays(np.float64, shapes),
    singles=arrays.arrays(np.float32, shapes).map(np.transpose),
    flags=arrays.arrays(np.bool_, shapes),
    of_rank=st.dictionaries(st.integers(), st.tuples(st.integers(), st.text())),
    of_pair=st.dictionaries(st.tuples(st.text(), st.text()), arrays.arrays(np.float64, shapes)),
    courses=st.dictionaries(st.integers(), courses),
    members=st.frozensets(st.integers()),
    pair=st.none() | st.tuples(courses, words),
)


@given(trees)
def test_a_tree_comes_back_as_it_was(tree: Tree) -> None:
    again = Tree()
    load(again, dump(tree))
    for name in (each.name for each in fields(Tree) if each.name != "members"):
        assert repr(getattr(again, name)) == repr(getattr(tree, name))  # NaN is not equal to itself
    assert again.members == tree.members
    assert again.numbers.tobytes() == tree.numbers.tobytes()
    assert all(array.flags.writeable and array.flags.c_contiguous for array in (again.numbers, again.singles))
    assert dump(again) == dump(tree)


def test_what_is_given_or_derived_is_not_stored() -> None:
    again = Tree(budget=2.0, cache="there")
    load(again, dump(Tree(budget=1.0, cache=object(), count=3)))
    assert (again.budget, again.cache, again.count) == (2.0, "there", 3)


def test_who_holds_a_stateful_object_still_holds_it() -> None:
    @dataclass(eq=False)
    class Outer:
        inner: Course = field(default_factory=lambda: Course(0))

    outer = Outer()
    holder = outer.inner
    load(outer, dump(Outer(inner=Course(7, [[1.0]]))))
    assert outer.inner is holder
    assert (holder.incarnation, holder.spells) == (7, [[1.0]])


@dataclass(eq=False)
class Older:
    count: int = 5
    gone: str = "of before"


@dataclass(eq=False)
class Newer:
    count: int = 0
    fresh: float = 0.25


def test_a_field_that_is_missing_keeps_its_beginning_and_an_unknown_one_is_passed_over() -> None:
    newer = Newer()
    load(newer, dump(Older()))
    assert (newer.count, newer.fresh) == (5, 0.25)


@dataclass(eq=False)
class Otherwise:
    count: str = "five"


@dataclass(eq=False)
class WithArray:
    count: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))


@dataclass(eq=False)
class WithOtherArray:
    count: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))


@pytest.mark.parametrize(
    ("stored", "into"),
    [(Otherwise(), Newer()), (WithArray(), Newer()), (Newer(), WithArray()), (WithArray(), WithOtherArray())],
    ids=["a text", "an array", "no array", "an array of other numbers"],
)
def test_another_type_is_refused_by_the_name_of_its_field(stored: object, into: object) -> None:
    with pytest.raises(SnapshotError, match=r"\.count is "):
        load(into, dump(stored))


@pytest.mark.parametrize("cut", [0, 1, 10, -4])
def test_damaged_bytes_are_refused(cut: int) -> None:
    with pytest.raises(SnapshotError, match="cannot be read"):
        load(Tree(), dump(Tree())[:cut])


@pytest.mark.parametrize("stored", [b"", b"garbage", zlib.compress(b'{"format":1,"state":{}}')])
def test_what_is_no_snapshot_of_this_format_is_refused(stored: bytes) -> None:
    with pytest.raises(SnapshotError, match="snapshot"):
        load(Tree(), stored)


def test_what_is_no_state_is_not_stored() -> None:
    with pytest.raises(TypeError, match="object is not part of a state"):
        dump(Tree(name=object()))  # type: ignore[arg-type]
