"""Stamps as the sample carries them."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.traffic import MAX_STAMPS, group_number, stamped_indices
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.elastic.measure.traffic import traffic_message
from evenkeel.trainer_sdk.groups.channel import Stamps


@given(st.integers(0, 5000))
def test_the_first_and_the_last_operation_are_told_and_never_more_than_the_limit(count):
    chosen = stamped_indices(count)
    assert len(chosen) == min(count, MAX_STAMPS)
    assert list(chosen) == sorted(set(chosen))
    assert not count or (chosen[0], chosen[-1]) == (0, count - 1)


def test_a_groups_number_does_not_depend_on_the_order_of_its_ranks() -> None:
    assert group_number((3, 1, 2)) == group_number((1, 2, 3)) != group_number((1, 2))
    assert 0 <= group_number(range(1000)) < 2**32


def test_every_channel_has_the_stamps_that_its_kind_needs() -> None:
    message = traffic_message(
        [
            Stamps(pb.CHANNEL_KIND_ACTIVATION_SENT, 1, 2, [10.001, 10.002], [], [5, 6]),
            Stamps(pb.CHANNEL_KIND_GRADIENT_RECEIVED, 1, 2, [10.003], [0.5], [7]),
            Stamps(pb.CHANNEL_KIND_COLLECTIVE, 99, 4, [10.0 + k for k in range(20)], [0.25] * 20, [8] * 20),
            Stamps(pb.CHANNEL_KIND_COLLECTIVE, 98, 4, [], [], []),
        ],
        10.0,
    )
    assert list(message.parties) == [1, 1, 99]
    assert list(message.num_operations) == [2, 1, 20]
    assert list(message.num_stamped) == [2, 1, MAX_STAMPS]
    assert list(message.num_bytes) == [11, 7, 160]
    assert list(message.entered_microseconds) == [1000, 2000, 3000]
    assert list(message.took_microseconds) == [500_000, *[250_000] * MAX_STAMPS]
    assert list(message.stamped_bytes) == [7, *[8] * MAX_STAMPS]
