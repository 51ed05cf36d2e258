"""Creates the topics of :mod:`evenkeel.contracts.topics` and reports where a cluster differs from that table."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from evenkeel.contracts.kafka_security import SETTINGS
from evenkeel.contracts.topics import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_NUM_PARTITIONS, TOPICS, Topic
from evenkeel.stack.errors import ServerAwayError, StackError
from evenkeel.stack.processes.loops import Result, run_on_own_loop

TIMEOUT_SECONDS = 120.0
MAX_REPLICAS = 3
POLL_SECONDS = 0.02
# Dead letters are looked at by people, some days later.
DEAD_LETTER_RETENTION_MILLISECONDS = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """A topic as it should be in the cluster.

    Attributes:
        name: Name.
        num_partitions: Never changed on an existing topic: keys map to partitions. None: as many as the others have
            that are there already, or as many as whoever applies it says.
        settings: Topic settings that differ from the broker's defaults, in Kafka's words.
    """

    name: str
    num_partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDrift:
    """One difference between the table and a cluster.

    Attributes:
        topic: Name of the topic.
        what: ``topic``, ``partitions`` or the name of a setting.
        wanted: Value in the table.
        found: Value in the cluster; empty where there is none.
    """

    topic: str
    what: str
    wanted: str
    found: str


def wanted_topics(topics: Iterable[Topic] = TOPICS) -> tuple[WantedTopic, ...]:
    """Every topic, and a dead-letter topic for each that is consumed."""
    wanted = []
    for topic in topics:
        settings = {"cleanup.policy": "compact"}
        if not topic.compacted:
            retention_milliseconds = int(topic.retention.total_seconds() * 1000)
            settings = {"cleanup.policy": "delete", "retention.ms": str(retention_milliseconds)}
        if topic.is_dated_by_broker:
            settings["message.timestamp.type"] = "LogAppendTime"
        size = {}
        if topic.max_message_bytes != DEFAULT_MAX_MESSAGE_BYTES:
            size = {"max.message.bytes": str(topic.max_message_bytes)}
        wanted.append(WantedTopic(name=topic.name, settings=settings | size))
        if topic.consumers:
            settings = {"cleanup.policy": "delete", "retention.ms": str(DEAD_LETTER_RETENTION_MILLISECONDS)} | size
            wanted.append(WantedTopic(name=topic.dead_letter_name, num_partitions=1, settings=settings))
    return tuple(wanted)


def drift(
    wanted: Iterable[WantedTopic], partitions: Mapping[str, int], settings: Mapping[str, Mapping[str, str]]
) -> tuple[TopicDrift, ...]:
    """Differences between what is wanted and what a cluster has; pure.

    Args:
        wanted: Topics as they should be.
        partitions: Number of partitions of each topic in the cluster.
        settings: Settings of each topic in the cluster.
    """
    found = []
    wanted = tuple(wanted)
    common = _common_number(wanted, partitions) or 0
    for topic in wanted:
        if topic.name not in partitions:
            found.append(TopicDrift(topic=topic.name, what="topic", wanted="exists", found=""))
            continue
        num_partitions = topic.num_partitions or common
        if partitions[topic.name] != num_partitions:
            found.append(
                TopicDrift(
                    topic=topic.name, what="partitions", wanted=str(num_partitions), found=str(partitions[topic.name])
                )
            )
        for name, value in topic.settings.items():
            actual = settings.get(topic.name, {}).get(name, "")
            if actual != value:
                found.append(TopicDrift(topic=topic.name, what=name, wanted=value, found=actual))
    return tuple(found)


def _common_number(wanted: Iterable[WantedTopic], partitions: Mapping[str, int]) -> int | None:
    """How many partitions those have that may have any number: the most; None if none of them is there."""
    free = (topic.name for topic in wanted if topic.num_partitions is None)
    return max((partitions[name] for name in free if name in partitions), default=None)


def apply_topics(
    bootstrap_servers: str,
    wanted: Iterable[WantedTopic] | None = None,
    *,
    security: Mapping[str, Any] | None = None,
    num_partitions: int = DEFAULT_NUM_PARTITIONS,
) -> tuple[str, ...]:
    """Creates the topics that are missing; existing ones stay as they are. Blocks; safe beside a running event loop.

    Args:
        bootstrap_servers: ``host:port[,host:port]``.
        wanted: Topics; all of Evenkeel's if not told.
        security: How it is spoken to, see :mod:`evenkeel.contracts.kafka_security`.
        num_partitions: Of topics of which the table does not say it, if none of them is there yet; else as those have.

    Returns:
        Names of the topics that were created.

    Raises:
        ServerAwayError: Kafka does not answer.
        StackError: Kafka refuses.
    """
    topics = tuple(wanted_topics() if wanted is None else wanted)
    return _asked(bootstrap_servers, security, lambda client: _apply(client, topics, num_partitions))


def check_topics(
    bootstrap_servers: str,
    wanted: Iterable[WantedTopic] | None = None,
    *,
    security: Mapping[str, Any] | None = None,
) -> tuple[TopicDrift, ...]:
    """Differences between the table and the cluster. Blocks; safe beside a running event loop.

    Raises:
        ServerAwayError: Kafka does not answer.
    """
    topics = tuple(wanted_topics() if wanted is None else wanted)
    return _asked(bootstrap_servers, security, lambda client: _check(client, topics))


async def _apply(client: AIOKafkaAdminClient, wanted: tuple[WantedTopic, ...], num_partitions: int) -> tuple[str, ...]:
    present = set(await client.list_topics())
    missing = [topic for topic in wanted if topic.name not in present]
    if not missing:
        return ()
    num_brokers = len((await client.describe_cluster())["brokers"])
    replicas = min(num_brokers, MAX_REPLICAS)
    number = _common_number(wanted, await _num_partitions(client, present & {topic.name for topic in wanted}))
    new = [
        NewTopic(
            topic.name, topic.num_partitions or number or num_partitions, replicas, topic_configs=dict(topic.settings)
        )
        for topic in missing
    ]
    response = await client.create_topics(new)
    for name, code, *message in response.topic_errors:
        error = for_code(code)
        # Another process may apply the same table at the same time.
        if code != 0 and error is not TopicAlreadyExistsError:
            raise StackError(f"topic {name} cannot be created: {error.__name__} {message or ''}")
    created = [topic.name for topic in missing]
    # Creation is acknowledged by the controller; the brokers hear of it a moment later.
    while not await _have_leaders(client, created):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(POLL_SECONDS)
    return tuple(created)


async def _num_partitions(client: AIOKafkaAdminClient, present: set[str]) -> dict[str, int]:
    described = await client.describe_topics(sorted(present)) if present else []
    return {each["topic"]: len(each["partitions"]) for each in described}


async def _have_leaders(client: AIOKafkaAdminClient, names: list[str]) -> bool:
    described = await client.describe_topics(names)
    return all(
        each["error_code"] == 0 and all(partition["leader"] >= 0 for partition in each["partitions"])
        for each in described
    )


async def _check(client: AIOKafkaAdminClient, wanted: tuple[WantedTopic, ...]) -> tuple[TopicDrift, ...]:
    present = set(await client.list_topics()) & {topic.name for topic in wanted}
    partitions = await _num_partitions(client, present)
    settings: dict[str, dict[str, str]] = {}
    if present:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(present)]
        for response in await client.describe_configs(resources):
            for _code, _message, _kind, name, entries in response.resources:
                settings[name] = {entry[0]: entry[1] for entry in entries}
    return drift(wanted, partitions, settings)


def _asked(
    bootstrap_servers: str,
    security: Mapping[str, Any] | None,
    work: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Result]],
) -> Result:
    async def ask() -> Result:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, **(security or {}))
        try:
            await client.start()
            return await work(client)
        finally:
            await client.close()

    try:
        return run_on_own_loop(ask(), timeout_seconds=TIMEOUT_SECONDS)
    except KafkaConnectionError as error:
        protocol = (security or {}).get("security_protocol", "PLAINTEXT")
        raise ServerAwayError(
            f"Kafka at {bootstrap_servers} does not answer to {protocol}; check {SETTINGS}"
        ) from error
    except (KafkaError, OSError) as error:
        raise ServerAwayError(f"Kafka says no: {error!r}; check {SETTINGS}") from error
