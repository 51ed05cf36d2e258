"""What waits for a job that begins anew: in order, offered once more, and read again after a restart."""

from collections.abc import Sequence

from evenkeel.services.common.kafka import ConsumedRecord, Partition
from evenkeel.services.common.kafka.records import Message
from evenkeel.services.scheduler.adapters.store.held_back import Held, HeldBack

VERDICTS, PROFILES = Partition("verdicts", 0), Partition("profiles", 0)


def messages(first: int, stop: int, partition: Partition = VERDICTS) -> list[Message[int]]:
    return [
        Message(
            content=offset,
            record=ConsumedRecord(
                partition=partition, offset=offset, timestamp_seconds=0.0, key=b"job", value=b"", headers=()
            ),
        )
        for offset in range(first, stop)
    ]


def contents(held: Sequence[Held[int]]) -> list[int]:
    return [each.message.content for each in held]


def test_what_was_not_tried_is_offered_together_and_what_failed_alone() -> None:
    back = HeldBack[int]()
    back.add("job", messages(3, 5), 10.0, tries=1)
    back.add("job", messages(5, 7), 11.0, tries=0)
    offered = []
    while again := back.next_of("job"):
        offered.append(contents(again))
        back.drop("job", again)
    assert offered == [[3], [4], [5, 6]]
    assert not back.has("job")
    assert not back.job_ids


def test_what_waits_is_read_again_after_a_restart_by_the_offsets_of_the_first_of_each_partition() -> None:
    back = HeldBack[int]()
    assert back.oldest_offsets == {}
    back.add("job", messages(7, 9), 10.0, tries=0)
    back.add("other", messages(4, 6), 10.0, tries=0)
    back.add("job", messages(2, 3, PROFILES), 10.0, tries=0)
    assert back.oldest_offsets == {VERDICTS: 4, PROFILES: 2}
    back.forget([VERDICTS])
    assert back.oldest_offsets == {PROFILES: 2}
    assert back.job_ids == ("job",)


def test_a_later_record_supersedes_those_of_its_topic_at_which_the_job_did_not_fail() -> None:
    back = HeldBack[int]()
    back.add("job", messages(1, 2, PROFILES), 10.0, tries=1)
    back.add("job", messages(2, 3, PROFILES), 10.0, tries=0)
    back.add("job", messages(7, 8), 10.0, tries=0)
    back.supersede("job", PROFILES.topic)
    back.supersede("another", PROFILES.topic)
    back.add("job", messages(3, 4, PROFILES), 10.0, tries=0)
    assert contents(back.older_than("job", 12.0)) == [1, 7, 3]


def test_what_has_waited_too_long_is_known() -> None:
    back = HeldBack[int]()
    back.add("job", messages(1, 2), 10.0, tries=0)
    back.add("job", messages(2, 3), 20.0, tries=0)
    assert contents(back.older_than("job", 15.0)) == [1]
    assert not back.older_than("another", 15.0)
