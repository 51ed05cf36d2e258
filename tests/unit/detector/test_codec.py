"""What crosses Kafka comes out as it went in, and what makes no sense is refused with a reason."""

import math

import numpy as np
import pytest

from evenkeel.contracts.topics import OBSERVATIONS
from evenkeel.detector.v1 import detector_pb2
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.detector.adapters.finding_codec import record_of
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.detector import JobDetector
from evenkeel.services.detector.domain.observation import FrameObservation, LivenessObservation
from evenkeel.services.detector.domain.profile import Profile
from evenkeel.services.detector.domain.verdict import Verdict, VerdictKind
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.detector.synthetic import SyntheticJob, cube, slow_from
from tests.unit.detector.wire import death, frame_to_proto


def consumed(value: bytes | None, key: bytes | None = b"job") -> ConsumedRecord:
    partition = Partition(OBSERVATIONS.name, 0)
    return ConsumedRecord(partition=partition, offset=0, timestamp_seconds=0.0, key=key, value=value)


def decode(message: pb.Observation) -> FrameObservation | LivenessObservation:
    return decode_observations(consumed(message.SerializeToString())).observations[0]


def test_a_frame_comes_out_as_it_went_in() -> None:
    frame = next(SyntheticJob(places=cube(), quotas=(4, 6)).frames(7, 8))
    decoded = decode(frame_to_proto(frame, "job", frame.sequence))
    assert isinstance(decoded, FrameObservation)
    assert (decoded.iteration, decoded.sequence, decoded.nodes) == (7, frame.sequence, frame.nodes)
    for name in ("compute_seconds", "token_flops", "square_flops", "tokens", "sums_of_squares", "losses"):
        np.testing.assert_allclose(getattr(decoded, name), getattr(frame, name), rtol=1e-12, err_msg=name)
    for name in ("ranks", "incarnations", "num_micro_batches", "replicas", "stages", "shards", "planned", "has_flops"):
        np.testing.assert_array_equal(getattr(decoded, name), getattr(frame, name), err_msg=name)
    assert len(set(decoded.work_keys)) == 2


def test_an_event_comes_out_as_it_went_in() -> None:
    decoded = decode(death("job", 3, rank=5, at_unix_seconds=12.5))
    assert isinstance(decoded, LivenessObservation)
    assert decoded.event is not None
    assert (decoded.event.rank, decoded.event.kind.value, decoded.at_unix_seconds) == (5, "died", 12.5)


def test_a_loop_that_does_not_know_its_models_cost_is_judged_by_tokens() -> None:
    message = pb.Observation(job_id="job")
    for rank in range(2):
        entry = message.frame.entries.add(rank=rank)
        entry.sample.compute.forward = 1.0
        entry.sample.micro_batches.add(tokens=100)
    message.frame.entries.add(rank=2).sample.compute.forward = 1.0
    decoded = decode(message)
    assert isinstance(decoded, FrameObservation)
    assert decoded.token_flops.tolist() == [100.0, 100.0, 1.0]
    assert decoded.num_micro_batches.tolist() == [1, 1, 1]
    assert not decoded.has_flops.any()


def bad_messages() -> dict[str, pb.Observation]:
    twice = pb.Observation(job_id="job")
    twice.frame.entries.add(rank=1)
    twice.frame.entries.add(rank=1)
    negative = pb.Observation(job_id="job")
    negative.frame.entries.add(rank=-1)
    timeless = pb.Observation(job_id="job")
    timeless.frame.closed_at_unix_seconds = float("nan")
    unknown = death("job", 0, rank=0, at_unix_seconds=1.0)
    unknown.liveness.event.kind = 99  # type: ignore[assignment]
    huge = death("job", (1 << 64) - 1, rank=0, at_unix_seconds=1.0)
    return {
        "no_job": pb.Observation(),
        "wrong_key": pb.Observation(job_id="another"),
        "empty": pb.Observation(job_id="job"),
        "bad_ranks": twice,
        "bad_ranks ": negative,
        "bad_time": timeless,
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
        sample = message.frame.entries[3].sample
        bad = (float("nan"), float("inf"), -1.0, 1e308)[frame.iteration % 4]
        sample.compute.forward = sample.wall_seconds = bad
        sample.micro_batches[0].sum_of_squares = bad
        sample.position.forward_flops_per_token = bad
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


def test_a_flag_of_a_column_is_true_whatever_number_but_0_it_is() -> None:
    columns = pb.FrameColumns(ranks=[0, 1, 2], has_loss=[False, True, True], losses=[0.0, 1.0, 2.0])
    message = pb.Observation(job_id="job", frame=pb.Frame(columns=columns))
    spoiled = message.SerializeToString().replace(b"\x00\x01\x01", b"\x00\x01\x40")
    assert spoiled != message.SerializeToString()
    frame = decode_observations(consumed(spoiled)).observations[0]
    assert isinstance(frame, FrameObservation)
    assert frame.has_loss.tobytes() == b"\x00\x01\x01"


def test_jobs_with_the_same_seats_but_other_names_keep_their_own_names() -> None:
    frames = []
    for name in ("here", "there"):
        columns = pb.FrameColumns(ranks=[0, 1], names=[name, "gpu"], node_of=[0, 0], device_of=[1, 1])
        frames.append(decode(pb.Observation(job_id="job", frame=pb.Frame(columns=columns))))
    assert [frame.nodes for frame in frames if isinstance(frame, FrameObservation)] == [("here",) * 2, ("there",) * 2]
