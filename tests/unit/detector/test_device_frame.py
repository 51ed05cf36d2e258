"""The compiled steps of a frame do what their definitions say, device by device."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.domain import device_frame, sequential_test
from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.device_offsets import LARGEST_OWN_OFFSET, follow
from evenkeel.services.detector.domain.device_tests import NUM_TESTS, advance
from evenkeel.services.detector.domain.frame_centre import place
from tests.unit.detector.synthetic import SyntheticJob, cube

LIMIT = 14.0
residuals_of_a_device = st.lists(st.floats(-0.5, 3.5), min_size=1, max_size=40)


def bank_of(count: int) -> DeviceBank:
    """Grown-up healthy devices without offsets."""
    bank = DeviceBank()
    frame = next(SyntheticJob(places=cube(count, 1, 1), quotas=(4,)).frames(0, 1))
    bank.locate(frame, num_to_baseline=0, num_to_skip=0)
    bank.has_offset[:], bank.scale[:] = True, 0.02
    bank.num_observed[:] = bank.num_settled[:] = 1_000
    return bank


def advanced(bank: DeviceBank, residuals: np.ndarray, *, freedom: float, memory: int) -> tuple[float, int, int]:
    return advance(
        bank.numbers,
        bank.counts,
        bank.num_in_sums,
        bank.flags,
        np.arange(len(bank)),
        residuals,
        0.01,
        freedom,
        LIMIT,
        memory,
        False,
        np.empty(len(bank), dtype=np.bool_),
    )


@settings(max_examples=60, deadline=None)
@given(residuals_of_a_device, st.sampled_from([0.006, 0.02, 0.1, 0.24, 0.3]), st.sampled_from([2.0, 3.3, 6.0]))
def test_what_is_passed_over_would_not_have_moved_a_sum(shown: list[float], scale: float, freedom: float) -> None:
    bank, memory = bank_of(2), 1 << 30  # an offset that rests on so many iterations is beyond doubt
    bank.scale[:], bank.num_settled[:] = scale, memory
    sums = np.zeros((2, NUM_TESTS))
    ages = np.zeros(sums.shape, dtype=np.int64)
    limits = np.full(2, LIMIT)
    for residual in shown:
        highest, num_decided, num_ill = advanced(bank, np.array([residual, 0.0]), freedom=freedom, memory=memory)
        doubt = 1.5 * scale / math.sqrt(memory)
        both = [min(z, max(z - doubt, 0.0)) for z in (residual, -residual)]
        ratios = sequential_test.log_ratios(np.array(both), np.full(2, scale), freedom)
        sequential_test.advance(sums, ages, ratios, limits)
        np.testing.assert_allclose(bank.sums[:, :, 0].T, sums, rtol=1e-9, atol=1e-9)
        assert np.array_equal(bank.ages[:, :, 0].T, ages)
        assert highest == pytest.approx(sums.max(), abs=1e-9)
        assert num_ill == 0
        if abs(sums.max() - LIMIT) > 1e-6:
            assert num_decided == (sums.max() >= LIMIT)


def placed(
    bank: DeviceBank, log_ratios: list[float], usual: float = 0.0
) -> tuple[np.ndarray, tuple[float, int, int, int]]:
    residuals = np.empty(len(log_ratios))
    told = place(
        bank.numbers,
        bank.counts,
        bank.flags,
        np.arange(len(bank)),
        np.array(log_ratios),
        0.01,
        usual,
        bank.push(0)[-1],
        residuals,
    )
    return residuals, told


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-0.02, 0.02), min_size=3, max_size=40), st.data())
def test_residuals_are_apart_from_the_lower_median_of_the_healthy(log_ratios: list[float], data: st.DataObject) -> None:
    bank = bank_of(len(log_ratios))
    bank.ill[:] = data.draw(st.lists(st.booleans(), min_size=len(log_ratios), max_size=len(log_ratios)))
    healthy = np.array(log_ratios)[~bank.ill]
    residuals, (_, *pair, num_waiting) = placed(bank, log_ratios)
    assert num_waiting == 0
    assert bank.num_observed.tolist() == [1_001] * len(bank)
    if len(healthy) > 2:
        assert residuals.tolist() == (np.array(log_ratios) - np.sort(healthy)[(len(healthy) - 1) // 2]).tolist()
        assert pair == [-1, -1]
    elif len(healthy) == 2:
        assert pair == np.flatnonzero(~bank.ill).tolist()
        assert residuals[pair].sum() == pytest.approx(0.0, abs=1e-15)
    assert bank.residuals[:, -1].tolist() == residuals.astype(np.float32).tolist()


def test_where_most_are_slower_those_who_are_not_are_the_centre() -> None:
    residuals, (usual, *_) = placed(bank_of(8), [0.2] * 6 + [0.0, 0.004])
    assert residuals.tolist() == pytest.approx([0.198] * 6 + [-0.002, 0.002])
    assert 0.0 < usual < 0.001


def test_a_device_without_a_baseline_waits_and_is_no_part_of_the_centre() -> None:
    bank = bank_of(4)
    bank.num_to_baseline[3] = 2
    residuals, (*_, num_waiting) = placed(bank, [0.01, 0.02, 0.03, -0.5])
    assert num_waiting == 1
    assert residuals.tolist() == pytest.approx([-0.01, 0.0, 0.01, -0.52])
    assert bank.num_settled.tolist() == [1_001, 1_001, 1_001, 1_000]


def test_offsets_of_the_calm_follow_within_bounds_and_those_of_the_ill_do_not() -> None:
    bank = bank_of(6)
    bank.ill[0] = True
    bank.sums[0, 0, 1] = 5.0
    calm = np.empty(6, dtype=np.bool_)
    for _ in range(400):
        shown = np.array([0.3, 0.3, 0.3, -0.3, 0.01, 0.0])
        num_calm = follow(bank.numbers, bank.counts, bank.flags, np.arange(6), shown, 0.01, 64, False, False, 3.5, calm)
    assert num_calm == 4
    assert calm.tolist() == [False, False, True, True, True, True]
    most = LARGEST_OWN_OFFSET
    assert bank.own_offset.tolist() == pytest.approx([0.0, 0.0, most, -most, most, 0.0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(0.0, 20.0), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 2),
    st.booleans(),
)
def test_a_frame_at_once_is_the_steps_one_by_one_and_stops_where_something_is_to_be_decided(
    told: list[tuple[float, float, bool]], num_waiting: int, few: bool
) -> None:
    shown = np.array([residual for residual, _, _ in told])
    banks = bank_of(len(told)), bank_of(len(told))
    for bank in banks:
        bank.sums[0, 0], bank.ill[:] = [total for _, total, _ in told], [ill for _, _, ill in told]
        bank.num_to_baseline[:num_waiting] = 2
    at_once, by_steps = banks
    marks, residuals = np.zeros((2, len(told)), dtype=np.bool_), np.empty(len(told))
    found = device_frame.judge(
        *(at_once.numbers, at_once.counts, at_once.num_in_sums, at_once.flags, np.arange(len(told)), shown),
        *(at_once.push(0)[-1], 0.01, 4.0, 0.0, LIMIT, 3.5, 64, few, residuals, marks),
    )
    expected, centre = placed(by_steps, shown.tolist())
    assert residuals.tolist() == expected.tolist()
    assert found[:4] == centre
    if centre[3] == 0:
        decided, calm = np.empty((2, len(told)), dtype=np.bool_)
        paired = centre[1] >= 0
        tables = by_steps.numbers, by_steps.counts, by_steps.num_in_sums, by_steps.flags, np.arange(len(told))
        tested = advance(*tables, expected, 0.01, 4.0, LIMIT, 64, paired, decided)
        assert found[4:] == tested
        assert marks[0].tolist() == decided.tolist()
        if not any(tested[1:]):
            follow(*tables[:2], *tables[3:], expected, 0.01, 64, few, paired, 3.5, calm)
            assert marks[1].tolist() == calm.tolist()
    assert at_once.numbers.tobytes() == by_steps.numbers.tobytes()
    assert at_once.counts.tobytes() == by_steps.counts.tobytes()
