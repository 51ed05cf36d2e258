"""What the detector says is believed only as far as it can be meant."""

import math

import pytest

from evenkeel.contracts.topics import PROFILES, SUSPICIONS, VERDICTS
from evenkeel.detector.v1 import detector_pb2 as pb
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.scheduler.adapters.findings import DECODERS
from evenkeel.services.scheduler.domain.profiles import JobEnded

GOOD = {
    VERDICTS.name: pb.Verdict(
        job_id="job",
        verdict_id="v",
        kind=pb.VERDICT_KIND_FAIL_STOP,
        confidence=0.9,
        culprits=[pb.Culprit(rank=3, incarnation=1)],
    ),
    PROFILES.name: pb.Profile(
        job_id="job",
        iteration=7,
        seconds_per_flop=1e-12,
        tokens=100.0,
        iteration_seconds=0.5,
        throughputs=[pb.RankThroughput(rank=0, throughput=0.5), pb.RankThroughput(rank=1, throughput=math.nan)],
    ),
    SUSPICIONS.name: pb.Suspicion(job_id="job", rank=1, peer_rank=2, matrix_size=64, at_unix_seconds=5.0),
}
TOPICS = sorted(GOOD)


def consumed(topic: str, value: bytes | None, key: bytes = b"job") -> ConsumedRecord:
    return ConsumedRecord(
        partition=Partition(topic, 0), offset=0, timestamp_seconds=0.0, key=key, value=value, headers=[]
    )


def refusal(topic: str, value: bytes | None, key: bytes = b"job") -> str:
    with pytest.raises(RejectedRecordError) as refused:
        DECODERS[topic](consumed(topic, value, key))
    return refused.value.error


def test_every_topic_that_is_read_has_a_decoder() -> None:
    assert sorted(DECODERS) == TOPICS


@pytest.mark.parametrize("topic", TOPICS)
def test_what_can_be_meant_is_read(topic: str) -> None:
    found = DECODERS[topic](consumed(topic, GOOD[topic].SerializeToString()))
    assert found.job_id == "job"


@pytest.mark.parametrize("topic", TOPICS)
def test_bytes_that_are_no_message_are_refused(topic: str) -> None:
    assert refusal(topic, b"\xff\xff\xff") == "malformed"


@pytest.mark.parametrize("topic", TOPICS)
def test_a_message_under_another_jobs_key_or_of_no_job_is_refused(topic: str) -> None:
    value = GOOD[topic].SerializeToString()
    assert refusal(topic, value, b"another") == "key"
    assert refusal(topic, None, b"") == "key"


@pytest.mark.parametrize(
    ("topic", "field", "value"),
    [
        (VERDICTS.name, "verdict_id", ""),
        (VERDICTS.name, "verdict_id", "v" * 5000),
        (VERDICTS.name, "throughput", -1.0),
        (VERDICTS.name, "confidence", math.nan),
        (VERDICTS.name, "decided_at_unix_seconds", math.nan),
        (VERDICTS.name, "decided_at_unix_seconds", 2.6e11),
        (VERDICTS.name, "decided_at_unix_seconds", -1.0),
        (PROFILES.name, "seconds_per_flop", -1.0),
        (SUSPICIONS.name, "rank", -1),
        (SUSPICIONS.name, "peer_rank", 1),
        (SUSPICIONS.name, "matrix_size", 0),
        (SUSPICIONS.name, "at_unix_seconds", math.inf),
    ],
)
def test_a_value_that_cannot_be_is_refused(topic: str, field: str, value: object) -> None:
    message = type(GOOD[topic])()
    message.CopyFrom(GOOD[topic])
    setattr(message, field, value)
    assert refusal(topic, message.SerializeToString()) == "value"


@pytest.mark.parametrize("field", ["node", "device"])
def test_a_culprit_whose_place_no_index_can_hold_is_refused(field: str) -> None:
    message = pb.Verdict()
    message.CopyFrom(GOOD[VERDICTS.name])
    setattr(message.culprits[0], field, "n" * 5000)
    assert refusal(VERDICTS.name, message.SerializeToString()) == "value"


@pytest.mark.parametrize(
    ("field", "value"), [("partner_rank", 1), ("peer_partner_rank", 3), ("partner_incarnation", -1), ("num_bytes", 0)]
)
def test_a_suspicion_about_links_names_four_ranks_and_what_to_send(field: str, value: int) -> None:
    link = pb.SuspectedLink(partner_rank=3, peer_partner_rank=4, num_bytes=1000)
    message = pb.Suspicion(job_id="job", rank=1, peer_rank=2, at_unix_seconds=5.0, link=link)
    suspicion = DECODERS[SUSPICIONS.name](consumed(SUSPICIONS.name, message.SerializeToString()))
    assert [rank for rank, _ in suspicion.processes] == [1, 2, 3, 4]
    setattr(message.link, field, value)
    assert refusal(SUSPICIONS.name, message.SerializeToString()) == "value"


def test_a_throughput_that_is_no_number_is_left_out_of_its_profile() -> None:
    profile = DECODERS[PROFILES.name](consumed(PROFILES.name, GOOD[PROFILES.name].SerializeToString()))
    assert profile.throughputs == {0: 0.5}


def test_a_loop_that_does_not_know_what_its_model_costs_has_a_profile_without_a_price() -> None:
    message = pb.Profile(job_id="job", iteration=7, tokens=100.0, iteration_seconds=0.5)
    profile = DECODERS[PROFILES.name](consumed(PROFILES.name, message.SerializeToString()))
    assert (profile.priced, profile.workload.tokens) == (False, 100.0)


def test_a_verdict_with_a_text_that_no_database_takes_is_refused() -> None:
    message = pb.Verdict()
    message.CopyFrom(GOOD[VERDICTS.name])
    message.evidence.add(name="process", text="exit\0status")
    assert refusal(VERDICTS.name, message.SerializeToString()) == "value"


def test_the_profile_of_a_job_that_has_ended_says_so_whatever_its_figures() -> None:
    message = pb.Profile(job_id="job", iteration=-1, seconds_per_flop=math.nan, ended=True)
    found = DECODERS[PROFILES.name](consumed(PROFILES.name, message.SerializeToString()))
    assert found == JobEnded(job_id="job")
