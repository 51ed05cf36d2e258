"""Byte strings and processes keep their numbers, however many there are and however they come."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.numeric.arrays import Bytes, Ints
from evenkeel.services.telemetry.adapters.byte_table import ByteTable, distinct, same_strings
from evenkeel.services.telemetry.domain.sequences import RecordSequences
from evenkeel.services.telemetry.domain.slots import Slots

# Alike in length, in their beginnings or in their ends; some differ in one byte only.
strings = st.one_of(
    st.binary(max_size=20), st.integers(0, 500).map(lambda number: b"node-%d" % number), st.sampled_from([b"", b"\0"])
)


def laid_out(raws: list[bytes]) -> tuple[Bytes, Ints, Ints]:
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64)
    begins = ends - np.array([len(raw) for raw in raws], dtype=np.int64)
    return np.frombuffer(b"".join(raws), dtype=np.uint8), begins, ends


@settings(deadline=None)
@given(st.lists(st.lists(strings, max_size=300), min_size=1, max_size=4))
def test_a_table_knows_what_was_added_and_nothing_else(batches: list[list[bytes]]) -> None:
    table, known = ByteTable(), dict[bytes, int]()
    for raws in batches:
        wire, begins, ends = laid_out(raws)
        assert table.find(wire, begins, ends).tolist() == [known.get(raw, -1) for raw in raws]
        for raw in raws[::2]:
            if raw not in known:
                known[raw] = table.add(raw)
        assert table.find(wire, begins, ends).tolist() == [known.get(raw, -1) for raw in raws]
    assert [*known.values()] == list(range(len(table)))


@settings(deadline=None)
@given(st.lists(strings, max_size=300))
def test_strings_are_numbered_as_they_come(raws: list[bytes]) -> None:
    which, firsts = distinct(*laid_out(raws))
    numbers = {raw: number for number, raw in enumerate(dict.fromkeys(raws))}
    assert which.tolist() == [numbers[raw] for raw in raws]
    assert firsts.tolist() == [raws.index(raw) for raw in numbers]


@settings(deadline=None)
@given(st.lists(st.tuples(strings, strings), max_size=50))
def test_strings_are_compared_byte_by_byte(pairs: list[tuple[bytes, bytes]]) -> None:
    (one, *spans), (other, *others) = (laid_out([pair[side] for pair in pairs]) for side in (0, 1))
    found = same_strings(one, np.column_stack(spans), other, np.column_stack(others))
    assert found.tolist() == [left == right for left, right in pairs]


processes = st.tuples(st.integers(-1, 400), st.sampled_from([0, 1, 2, 1_000_000_000]))


@settings(deadline=None)
@given(st.lists(st.lists(processes, max_size=400), min_size=1, max_size=4))
def test_each_process_keeps_its_number(batches: list[list[tuple[int, int]]]) -> None:
    slots, numbers = Slots(), dict[tuple[int, int], int]()
    for batch in batches:
        ranks, incarnations = (np.array([each[side] for each in batch], dtype=np.int64) for side in (0, 1))
        found = slots.of(ranks, incarnations).tolist()
        assert found == [numbers.setdefault(process, len(numbers)) for process in batch]
    assert len(slots) == len(numbers)


@settings(deadline=None)
@given(st.lists(st.tuples(processes, st.integers(0, 6), st.integers(0, 3)), max_size=60), st.integers(0, 60))
def test_lost_records_are_counted_the_same_however_records_are_batched(
    told: list[tuple[tuple[int, int], int, int]], cut: int
) -> None:
    numbers = np.array([[*process, *rest] for process, *rest in told], dtype=np.int64).reshape(-1, 4)
    at_once, in_parts, one_by_one = RecordSequences(), RecordSequences(), RecordSequences()
    expected = np.zeros(2, dtype=np.int64)
    newest = dict[tuple[int, int], tuple[int, int]]()
    for process, number, dropped in told:
        seen, lost = newest.get(process, (-1, 0))
        step = (number - seen - 1, max(0, dropped - lost)) if 0 <= seen < number else (0, 0)
        if number > seen:
            newest[process] = number, dropped if seen < 0 else max(dropped, lost)
        assert one_by_one.add(np.array([[*process, number, dropped]])) == step
        expected += step
    assert at_once.add(numbers) == tuple(expected)
    assert [sum(pair) for pair in zip(*map(in_parts.add, (numbers[:cut], numbers[cut:])), strict=True)] == [*expected]
