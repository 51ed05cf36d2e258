"""``docs/topics.md``, from the table of topics."""

from evenkeel.contracts.topics import DEFAULT_NUM_PARTITIONS, TOPICS, Topic

INTRODUCTION = """\
# Topics

`make generate` writes this page from `contracts/topics.py`, which `evenkeel topics apply` also uses.

Names are `evenkeel.<area>.<thing>.v<version>`; a breaking change of a message is a new topic. The key of every record is the job id
in UTF-8: a job's records stay in order, and all of its ranks reach one consumer. Values are protobuf (`protos/`); headers are
`content-type: application/protobuf` and the CloudEvents 1.0 attributes as `ce_*`, so any Kafka tool decodes a value with the
proto file named in `ce_type`.

All topics have the same number of partitions, so that a job has the same one in each: {partitions}, unless `evenkeel topics apply --partitions N`
made them. It never changes, because keys map to partitions: topics that are there keep theirs, and one that comes later gets as many.
It bounds how many instances of a service can share the jobs. A stack of `evenkeel stack up` has 8.
"""
PROMISES = """
## What is promised

| records | delivery | how a reader recognises repeats |
|---|---|---|
| records | at most once under overload: a rank drops its oldest, counts them in `num_dropped`, and `sequence` shows the gap | (job, rank, incarnation, sequence) |
| observations | at least once | (job, iteration, epoch) of a frame; `sequence` per job, by which a run counts each of its frames |
| verdicts | at least once | `verdict_id`, a pure function of what it says about whom |
| profiles | newest per job | `iteration` |
| suspicions | at least once; one that is half a minute old is not answered | (job, rank, incarnation, `iteration`) |
| plans | at least once, through a transactional outbox | (`plan_id`, `state`) |

What cannot be read goes to the consumed topic's dead-letter topic with its original key and bytes, and with headers that say where it
came from and why it was refused; nothing is dropped silently and nothing crashes. No record holds personal data: job, node and
device names are the operator's own.

A job's records pass through one partition: some hundred thousand samples per second, on two cores, is the limit of one job.
"""


def page() -> str:
    """The whole page."""
    lines = ["| topic | value | written by | read by | kept |", "|---|---|---|---|---|"]
    lines += [_row(topic) for topic in TOPICS]
    dead = [f"`{topic.dead_letter_name}`" for topic in TOPICS if topic.consumers]
    return "\n".join(
        [
            INTRODUCTION.format(partitions=DEFAULT_NUM_PARTITIONS),
            *lines,
            "",
            f"Dead-letter topics: {', '.join(dead)}.",
            PROMISES,
        ]
    )


def _row(topic: Topic) -> str:
    kept = "newest per key" if topic.compacted else f"{topic.retention.days} days"
    readers = ", ".join(topic.consumers) or "whoever wants to"
    cells = (f"`{topic.name}`", f"`{topic.message}`", topic.producer, readers, kept)
    return "| " + " | ".join(cells) + " |"
