"""What holders of equal shares have in common moves from their own offsets to the shared one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.device_offsets import LARGEST_OWN_OFFSET, recentre
from tests.unit.detector.synthetic import SyntheticJob, cube


def bank_of(work_keys: list[float], own: list[float]) -> DeviceBank:
    bank = DeviceBank()
    frame = next(SyntheticJob(places=cube(len(work_keys), 1, 1), quotas=(4,)).frames(0, 1))
    bank.locate(frame, num_to_baseline=5, num_to_skip=0)
    bank.work_key[:], bank.own_offset[:] = work_keys, own
    return bank


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.floats(-0.03, 0.03)), min_size=1, max_size=12))
def test_of_each_share_the_middle_becomes_nothing_and_nobody_moves(devices: list[tuple[float, float]]) -> None:
    bank = bank_of([key for key, _ in devices], [own for _, own in devices])
    before = bank.shared_offset + bank.own_offset
    recentre(bank.numbers, np.arange(len(devices)))
    assert bank.shared_offset + bank.own_offset == pytest.approx(before, abs=1e-15)
    for key in {key for key, _ in devices}:
        own = np.sort(bank.own_offset[bank.work_key == key])
        if len(own) == 2 and own[1] - own[0] > LARGEST_OWN_OFFSET:
            assert own[0] == pytest.approx(-LARGEST_OWN_OFFSET / 2)
        else:
            assert np.median(own) == pytest.approx(0.0, abs=1e-15)


def test_who_is_left_out_keeps_what_is_known_of_it() -> None:
    bank = bank_of([1.0, 1.0, 1.0], [0.01, 0.02, 0.03])
    recentre(bank.numbers, np.array([0, 1]))
    assert bank.own_offset.tolist() == pytest.approx([-0.005, 0.005, 0.03])
    recentre(bank.numbers, np.zeros(0, dtype=np.int64))
    assert bank.shared_offset.tolist() == pytest.approx([0.015, 0.015, 0.0])
