"""What the topic table wants, and how a cluster may differ from it."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.topics import BATCHES, PROFILES, TOPICS
from evenkeel.stack.kafka.topics import WantedTopic, drift, wanted_topics

WANTED = wanted_topics()
PARTITIONS = {topic.name: topic.num_partitions or 12 for topic in WANTED}
SETTINGS = {topic.name: dict(topic.settings) for topic in WANTED}


def test_every_topic_is_wanted_and_a_dead_letter_topic_for_each_that_is_consumed() -> None:
    consumed = [topic.dead_letter_name for topic in TOPICS if topic.consumers]
    assert sorted(topic.name for topic in WANTED) == sorted([topic.name for topic in TOPICS] + consumed)


def test_compacted_topics_are_compacted_and_the_others_keep_their_time() -> None:
    assert SETTINGS[PROFILES.name] == {"cleanup.policy": "compact"}
    milliseconds = BATCHES.retention / timedelta(milliseconds=1)
    assert SETTINGS[BATCHES.name] == {
        "cleanup.policy": "delete",
        "retention.ms": str(int(milliseconds)),
        "message.timestamp.type": "LogAppendTime",
    }


def test_a_cluster_like_the_table_has_no_drift() -> None:
    assert drift(WANTED, PARTITIONS, SETTINGS) == ()


@given(st.sampled_from(WANTED))
def test_a_missing_topic_is_one_drift(topic: WantedTopic) -> None:
    partitions = {name: count for name, count in PARTITIONS.items() if name != topic.name}
    (found,) = drift(WANTED, partitions, SETTINGS)
    assert (found.topic, found.what) == (topic.name, "topic")


@given(st.sampled_from(WANTED), st.integers(min_value=1, max_value=100))
def test_another_number_of_partitions_is_a_drift_with_both_numbers(topic: WantedTopic, count: int) -> None:
    found = drift(WANTED, {**PARTITIONS, topic.name: count}, SETTINGS)
    assert {(each.what, each.wanted) for each in found} <= {("partitions", str(topic.num_partitions or max(12, count)))}
    # All that may have any number have the same; where one has more, it is the others that have too few.
    odd = {each.topic for each in found}
    free = {each.name for each in WANTED if each.num_partitions is None}
    if topic.num_partitions is None and count > 12:
        assert odd == free - {topic.name}
    else:
        assert odd == ({topic.name} if count != PARTITIONS[topic.name] else set())


def test_a_setting_that_is_not_there_is_a_drift_without_a_value() -> None:
    (found,) = drift(WANTED, PARTITIONS, {**SETTINGS, PROFILES.name: {}})
    assert (found.topic, found.what, found.found) == (PROFILES.name, "cleanup.policy", "")
