import re

from google.protobuf import symbol_database

import evenkeel.detector.v1.detector_pb2
import evenkeel.scheduler.v1.scheduler_pb2
import evenkeel.telemetry.v2.batch_pb2
import evenkeel.telemetry.v2.frames_pb2  # noqa: F401 - importing registers the messages
from evenkeel.contracts.topics import BATCHES, TOPICS, record_headers


def test_topic_names_follow_the_convention_and_are_unique():
    names = [topic.name for topic in TOPICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"evenkeel\.[a-z]+\.[a-z]+\.v\d+", name) for name in names)


def test_every_topic_carries_a_message_that_exists():
    pool = symbol_database.Default().pool
    for topic in TOPICS:
        assert pool.FindMessageTypeByName(topic.message).full_name == topic.message


def test_headers_name_type_and_keep_the_natural_id():
    headers = dict(record_headers(BATCHES, "evenkeel/test", event_id="job/3"))
    assert headers["content-type"] == b"application/protobuf"
    assert headers["ce_id"] == b"job/3"
    assert headers["ce_type"] == b"evenkeel.telemetry.v2.Batch"
    assert headers["ce_specversion"] == b"1.0"
