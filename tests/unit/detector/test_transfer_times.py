"""Seconds of transfers, counted from when the last participant came."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.detector.adapters.frame_codec import frame_from_proto
from evenkeel.services.detector.domain.transfer_times import Transfers, TransferTimes
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

START = 1_700_000_000.0
TRANSFER = 2e-3


def sample(ahead: float, channels: list[tuple[int, int, int, list[float], list[float]]], at: float) -> pb.Sample:
    """A rank's sample on a clock that is ``ahead``; channels are kind, party, members, entered, took."""
    traffic = pb.Traffic()
    for kind, party, members, entered, took in channels:
        traffic.kinds.append(pb.ChannelKind.ValueType(kind))
        traffic.parties.append(party)
        traffic.num_members.append(members)
        traffic.num_operations.append(max(len(entered), len(took)))
        traffic.num_bytes.append(1000)
        traffic.num_stamped.append(max(len(entered), len(took)))
        traffic.entered_microseconds.extend(round(1e6 * value) for value in entered)
        traffic.took_microseconds.extend(round(1e6 * value) for value in took)
        traffic.stamped_bytes.extend(1000 for _ in took)
    return pb.Sample(started_at_unix_seconds=START + at + ahead, traffic=traffic)


def frame(iteration: int, samples: dict[int, pb.Sample], nodes: dict[int, str]) -> pb.Frame:
    entries = [pb.FrameEntry(rank=rank, node=nodes[rank], sample=one) for rank, one in samples.items()]
    return pb.Frame(iteration=iteration, closed_at_unix_seconds=1.0, entries=entries)


def pair_frame(iteration: int, rng: np.random.Generator, ahead: float, *, transfer: float = TRANSFER) -> pb.Frame:
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


def measured(times: TransferTimes, one: pb.Frame) -> Transfers:
    found = times.measure(frame_from_proto("job", one.iteration, one))
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


def test_columns_that_do_not_fit_spoil_their_own_sample_only() -> None:
    one = pair_frame(0, np.random.default_rng(0), 0.0)
    third = sample(0.0, [(pb.CHANNEL_KIND_COLLECTIVE, 77, 2, [], [0.5])], 0.0)
    third.traffic.took_microseconds.append(5)
    one.entries.add(rank=2, node="c", sample=third)
    fourth = sample(0.0, [(pb.CHANNEL_KIND_COLLECTIVE, 77, 2, [], [0.5])], 0.0)
    fourth.traffic.parties.append(5)
    one.entries.add(rank=3, node="c", sample=fourth)
    found = measured(TransferTimes(), one)
    assert [tie.ranks for tie in found.ties] == [(0, 1)]


def test_frames_of_ranks_that_measure_nothing_have_no_transfers() -> None:
    observation = frame_from_proto("job", 0, frame(0, {0: pb.Sample()}, {0: "a"}))
    assert observation.traffic is None
    assert TransferTimes().measure(observation) is None
