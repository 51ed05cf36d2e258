"""Kafka for services: two ports, their implementation on aiokafka, and the consume loop.

A service needs :class:`KafkaClientConfig`, :class:`KafkaProducer`, :class:`KafkaConsumer`, :class:`DeadLetters` and
:class:`ConsumeLoop` in its composition root, and a :class:`Handler` of its own.
"""

from evenkeel.services.common.kafka.client import KafkaClientConfig
from evenkeel.services.common.kafka.consumer import KafkaConsumer
from evenkeel.services.common.kafka.dead_letters import DeadLetters
from evenkeel.services.common.kafka.loop import ConsumeLoop
from evenkeel.services.common.kafka.pace import LoopConfig
from evenkeel.services.common.kafka.ports import Handler
from evenkeel.services.common.kafka.producer import KafkaProducer
from evenkeel.services.common.kafka.records import (
    Batch,
    ConsumedRecord,
    OutgoingRecord,
    Partition,
    RejectedRecordError,
    Rejection,
)

__all__ = [
    "Batch",
    "ConsumeLoop",
    "ConsumedRecord",
    "DeadLetters",
    "Handler",
    "KafkaClientConfig",
    "KafkaConsumer",
    "KafkaProducer",
    "LoopConfig",
    "OutgoingRecord",
    "Partition",
    "RejectedRecordError",
    "Rejection",
]
