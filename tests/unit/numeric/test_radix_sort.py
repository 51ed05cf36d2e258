"""Sorting by bytes: numpy's order, whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evenkeel.numeric.radix_sort import Singles, radix_sorted

NUMBERS = hnp.arrays(
    np.float32, st.integers(0, 300), elements=st.floats(width=32, allow_nan=False, allow_subnormal=True)
)


@given(NUMBERS)
def test_numbers_ascend_as_numpy_has_them(values: Singles) -> None:
    before = values.copy()
    np.testing.assert_array_equal(radix_sorted(values), np.sort(values))
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("num_values", [0, 1, 255, 256, 257, 20_000])
def test_of_any_number_of_values(num_values: int) -> None:
    values = np.random.default_rng(num_values).standard_t(4, size=num_values).astype(np.float32)
    np.testing.assert_array_equal(radix_sorted(values), np.sort(values))


def test_what_is_no_number_stands_at_either_end() -> None:
    nan = np.float32(np.nan)
    values = np.array([0.5, nan, -np.inf, -nan, 0.0, -0.25, np.inf], dtype=np.float32)
    found = radix_sorted(values)
    assert np.isnan(found[[0, -1]]).all()
    np.testing.assert_array_equal(found[1:-1], np.array([-np.inf, -0.25, 0.0, 0.5, np.inf], dtype=np.float32))
