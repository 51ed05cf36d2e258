"""Seconds of transfers, counted from when the last participant came."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.frames import Frames, frames_of, members_of
from evenkeel.services.detector.adapters.frame_reader import observations_of
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.links.transfers.times import Transfers, TransferTimes
from evenkeel.telemetry.v2 import batch_pb2 as pb

START = 1_700_000_000.0
TRANSFER = 2e-3

Channel = tuple[int, int, int, list[float], list[float]]
Sample = tuple[float, list[Channel]]


def sample(ahead: float, channels: list[Channel], at: float) -> Sample:
    """A rank's iteration on a clock that is ``ahead``; channels are kind, party, members, entered, took."""
    return START + at + ahead, channels


def frame(iteration: int, samples: dict[int, Sample], nodes: dict[int, str]) -> Frames:
    channels = [channel for _, told in samples.values() for channel in told]
    counts = [max(len(entered), len(took)) for *_, entered, took in channels]
    stamps = [
        (round(1e6 * entered), round(1e6 * took))
        for count, (*_, all_entered, all_took) in zip(counts, channels, strict=True)
        for entered, took in zip(all_entered or [0.0] * count, all_took or [0.0] * count, strict=True)
    ]
    return frames_of(
        members_of(list(samples), nodes=[nodes[rank] for rank in samples], devices=["gpu"] * len(samples)),
        [iteration],
        closed_at_unix_seconds=[1.0],
        started_at_unix_seconds=[started for started, _ in samples.values()],
        num_channels=[len(told) for _, told in samples.values()],
        channel_kind=[channel[0] for channel in channels],
        channel_party=[channel[1] for channel in channels],
        channel_num_members=[channel[2] for channel in channels],
        channel_num_operations=counts,
        channel_bytes=[1000] * len(channels),
        channel_wait_microseconds=[0] * len(channels),
        channel_num_stamped=counts,
        stamp_entered_microseconds=[entered for entered, _ in stamps],
        stamp_took_microseconds=[took for _, took in stamps],
        stamp_bytes=[1000] * len(stamps),
    )


def observed(one: Frames) -> FrameObservation:
    [observation] = observations_of("job", 0, one)
    return observation


def pair_frame(iteration: int, rng: np.random.Generator, ahead: float, *, transfer: float = TRANSFER) -> Frames:
    """Ranks 0 and 1 on two nodes send each other four tensors; now one is late, now the other."""
    at = 2.0 * iteration
    sent, received = np.sort(rng.uniform(0.0, 1.0, (2, 2, 4)), axis=2)
    # Where a pipeline fills and drains, the receiver waits: that is what the clocks are known from.
    received[:, 0] = 0.0
    took = np.maximum(sent, received) + transfer - received
    first = sample(
        0.0,
        [
            (pb.CHANNEL_KIND_ACTIVATION_SENT, 1, 2, sent[0].tolist(), []),
            (pb.CHANNEL_KIND_GRADIENT_RECEIVED, 1, 2, received[1].tolist(), took[1].tolist()),
        ],
        at,
    )
    second = sample(
        ahead,
        [
            (pb.CHANNEL_KIND_ACTIVATION_RECEIVED, 0, 2, received[0].tolist(), took[0].tolist()),
            (pb.CHANNEL_KIND_GRADIENT_SENT, 0, 2, sent[1].tolist(), []),
        ],
        at,
    )
    return frame(iteration, {0: first, 1: second}, {0: "a", 1: "b"})


def measured(times: TransferTimes, one: Frames) -> Transfers:
    found = times.measure(observed(one))
    assert found is not None
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-20.0, 20.0))
def test_waiting_is_not_transfer_whoever_is_late_and_however_the_clocks_are_apart(seed, ahead):
    rng, times = np.random.default_rng(seed), TransferTimes()
    for iteration in range(4):
        found = measured(times, pair_frame(iteration, rng, ahead))
    assert [tie.ranks for tie in found.ties] == [(0, 1)]
    assert found.seconds == pytest.approx(np.full(8, TRANSFER), rel=0.02)


def test_a_collective_takes_as_long_as_the_last_to_come_is_in_it() -> None:
    entered = {0: [0.1, 0.9], 1: [0.4, 0.5], 2: [0.2, 0.8]}
    last = [max(times[k] for times in entered.values()) for k in range(2)]
    samples = {
        rank: sample(
            100.0 * rank,  # clocks do not matter
            [(pb.CHANNEL_KIND_COLLECTIVE, 77, 3, [], [last[k] + 0.01 * (k + 1) - times[k] for k in range(2)])],
            0.0,
        )
        for rank, times in entered.items()
    }
    found = measured(TransferTimes(), frame(0, samples, {0: "a", 1: "b", 2: "c"}))
    assert found.ties[0].ranks == (0, 1, 2)
    assert found.seconds == pytest.approx([0.01, 0.02])


def test_a_group_that_lacks_a_member_and_a_transfer_that_lacks_an_end_are_left_out() -> None:
    group = [(pb.CHANNEL_KIND_COLLECTIVE, 77, 3, [], [0.5])]
    ends = [(pb.CHANNEL_KIND_ACTIVATION_SENT, 9, 2, [0.1], [])]
    samples = {rank: sample(0.0, [*group, *ends], 0.0) for rank in (0, 1)}
    found = measured(TransferTimes(), frame(0, samples, {0: "a", 1: "b"}))
    assert len(found.ties) == 0
    assert len(found.seconds) == 0


def test_frames_of_ranks_that_measure_nothing_have_no_transfers() -> None:
    observation = observed(frame(0, {0: sample(0.0, [], 0.0)}, {0: "a"}))
    assert observation.traffic is None
    assert TransferTimes().measure(observation) is None
