"""What crosses Kafka comes out as it went in, and what makes no sense is refused with a reason."""

import math

import numpy as np
import pytest

from evenkeel.contracts.frames import Frames, frames_of, members_of, write_frames
from evenkeel.contracts.topics import FRAMES
from evenkeel.detector.v1 import detector_pb2
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.expectation.profile.profile import Profile
from evenkeel.services.detector.domain.findings.verdict import Verdict, VerdictKind
from evenkeel.services.detector.domain.frames.observation import FrameObservation, LivenessObservation
from evenkeel.services.detector.domain.job.job import JobDetector
from evenkeel.telemetry.v2 import frames_pb2 as pb
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from
from tests.unit.detector.wire import death, frame_to_proto


def consumed(value: bytes | None, key: bytes | None = b"job") -> ConsumedRecord:
    partition = Partition(FRAMES.name, 0)
    return ConsumedRecord(partition=partition, offset=0, timestamp_seconds=0.0, key=key, value=value)


def decode(message: pb.Observation) -> FrameObservation | LivenessObservation:
    return decode_observations(consumed(message.SerializeToString())).observations[0]


def test_a_frame_comes_out_as_it_went_in() -> None:
    frame = next(SyntheticJob(places=cube(), quotas=(4, 6)).frames(7, 8))
    decoded = decode(frame_to_proto(frame, "job", frame.sequence))
    assert isinstance(decoded, FrameObservation)
    assert (decoded.iteration, decoded.sequence, decoded.nodes) == (7, frame.sequence, frame.nodes)
    for name in ("compute_seconds", "token_flops", "square_flops", "tokens", "sums_of_squares", "losses"):
        np.testing.assert_allclose(getattr(decoded, name), getattr(frame, name), rtol=1e-6, err_msg=name)
    for name in ("ranks", "incarnations", "num_micro_batches", "replicas", "stages", "shards", "planned", "has_flops"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(frame, name), err_msg=name)
    assert len(set(decoded.work_keys)) == 2


def test_an_event_comes_out_as_it_went_in() -> None:
    decoded = decode(death("job", 3, rank=5, at_unix_seconds=12.5))
    assert isinstance(decoded, LivenessObservation)
    assert decoded.event is not None
    assert (decoded.event.rank, decoded.event.kind.value, decoded.at_unix_seconds) == (5, "died", 12.5)


def told(frames: Frames) -> pb.Observation:
    message = pb.Observation(job_id="job")
    write_frames(message.frames, frames)
    return message


def small(ranks: list[int], **columns: object) -> Frames:
    members = members_of(ranks, nodes=["node"] * len(ranks), devices=["gpu"] * len(ranks))
    return frames_of(members, [0], **({"closed_at_unix_seconds": [1.0]} | columns))  # type: ignore[arg-type]


def test_a_loop_that_does_not_know_its_models_cost_is_judged_by_tokens() -> None:
    frames = small([0, 1, 2], forward_seconds=1.0, tokens=[100, 100, 0], num_micro_batches=[1, 1, 0])
    decoded = decode(told(frames))
    assert isinstance(decoded, FrameObservation)
    assert decoded.token_flops.tolist() == [100.0, 100.0, 1.0]
    assert decoded.num_micro_batches.tolist() == [1, 1, 1]
    assert not decoded.has_flops.any()


def test_who_did_not_report_is_missing_and_no_entry() -> None:
    message = told(small([0, 1, 2], forward_seconds=[1.0, 0.0, 3.0]))
    message.frames.flags[1] = 0
    decoded = decode(message)
    assert isinstance(decoded, FrameObservation)
    assert (decoded.ranks.tolist(), decoded.missing_ranks) == ([0, 2], (1,))
    assert decoded.compute_seconds.tolist() == [1.0, 3.0]


def test_frames_that_come_together_are_numbered_one_by_one() -> None:
    members = members_of([0, 1], nodes=["n"] * 2, devices=["a", "b"])
    frames = frames_of(
        members,
        [7, 8],
        closed_at_unix_seconds=[1.0, 2.0],
        forward_seconds=[[1.0, 2.0], [3.0, 4.0]],
        num_listed=[[1, 0], [0, 2]],
        listed_index=[0, 1, 2],
        listed_tokens=[10, 20, 30],
        listed_squares=[1.0, 2.0, 3.0],
        listed_kept=[0, 0, 1],
    )
    message = told(frames)
    message.sequence = 40
    found = decode_observations(consumed(message.SerializeToString())).observations
    seen = [
        (one.sequence, one.iteration, one.compute_seconds.tolist(), (one.micro_batches).tolist())
        for one in found
        if isinstance(one, FrameObservation) and one.micro_batches is not None
    ]
    assert seen == [(40, 7, [1.0, 2.0], [[0.0, 10.0, 1.0]]), (41, 8, [3.0, 4.0], [[1.0, 20.0, 2.0]])]


def bad_messages() -> dict[str, pb.Observation]:
    twice = told(small([0, 1]))
    twice.frames.members.rank[0] = 1
    short = told(small([0, 1]))
    del short.frames.wall_seconds[0]
    unknown = death("job", 0, rank=0, at_unix_seconds=1.0)
    unknown.liveness.event.kind = 99  # type: ignore[assignment]
    huge = death("job", (1 << 64) - 1, rank=0, at_unix_seconds=1.0)
    picture = death("job", 0, rank=0, at_unix_seconds=1.0)
    picture.liveness.rank.extend([0, 1])
    return {
        "no_job": pb.Observation(),
        "wrong_key": pb.Observation(job_id="another"),
        "empty": pb.Observation(job_id="job"),
        "bad_columns": twice,
        "bad_columns ": short,
        "bad_columns  ": picture,
        "bad_ranks": told(small([-1, 0])),
        "bad_time": told(small([0], closed_at_unix_seconds=[math.nan])),
        "unknown_event": unknown,
        "out_of_range": huge,
    }


@pytest.mark.parametrize(("error", "message"), bad_messages().items(), ids=list(bad_messages()))
def test_what_makes_no_sense_is_refused(error: str, message: pb.Observation) -> None:
    with pytest.raises(RejectedRecordError) as refused:
        decode(message)
    assert refused.value.error == error.strip()


@pytest.mark.parametrize("value", [None, b"", b"\xff\xff\xff", b"{}"])
def test_bytes_that_are_no_observation_are_refused(value: bytes | None) -> None:
    with pytest.raises(RejectedRecordError):
        decode_observations(consumed(value))


def test_numbers_that_are_none_do_not_disturb_the_detector() -> None:
    detector, found = JobDetector("job"), []
    for frame in SyntheticJob(places=cube(), throughput=slow_from(2, 60, 0.5)).frames(0, 100):
        message = frame_to_proto(frame, "job", frame.sequence)
        bad = (float("nan"), float("inf"), -1.0, 1e308)[frame.iteration % 4]
        frames = message.frames
        frames.forward_seconds[3] = frames.wall_seconds[3] = frames.sum_of_squares[3] = bad
        frames.members.forward_flops_per_token[3] = bad
        found += detector.observe(decode(message))
    assert all(record_of(one).value for one in found)
    (verdict,) = [one for one in found if isinstance(one, Verdict)]
    assert (verdict.kind, [culprit.rank for culprit in verdict.culprits]) == (VerdictKind.COMPUTE_SLOW, [2])
    assert verdict.throughput == pytest.approx(0.5, abs=0.02)
    profiles = [one for one in found if isinstance(one, Profile)]
    assert len(profiles) >= 10
    assert all(math.isfinite(profile.iteration_seconds) for profile in profiles)


def test_a_verdict_is_published_with_its_own_id() -> None:
    detector, published = JobDetector("job"), []
    for frame in SyntheticJob(places=cube(), throughput=slow_from(2, 50, 0.5)).frames(0, 60):
        published += [record_of(found) for found in detector.observe(frame)]
    records = [record for record in published if "verdicts" in record.topic]
    assert len(records) == 1
    verdict = detector_pb2.Verdict.FromString(records[0].value or b"")
    assert verdict.kind == detector_pb2.VERDICT_KIND_COMPUTE_SLOW
    assert [(one.rank, one.node, one.device) for one in verdict.culprits] == [(2, "node-0", "device-2")]
    assert dict(records[0].headers)["ce_id"].decode() == verdict.verdict_id
    assert len(verdict.evidence) >= 3
    assert all(one.name and one.text for one in verdict.evidence)
