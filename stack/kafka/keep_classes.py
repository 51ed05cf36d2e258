"""Keeps Kafka's classes as its JVM has them in memory: a broker that finds them starts with half the work.

``python -m evenkeel.stack.kafka.keep_classes`` does it, once for each checkout. A JVM that they do not fit, because
its jars or its version are others, passes over them and reads its classes from the jars.
"""

import os
import sys
import tempfile
from pathlib import Path

from evenkeel.stack.errors import StackError
from evenkeel.stack.kafka.jars import kafka_jars
from evenkeel.stack.kafka.node import Kafka, kept_classes_path
from evenkeel.stack.kafka.topics import apply_topics
from evenkeel.stack.processes.watchdog import Watchdog

STOP_SECONDS = 300.0
"""The JVM writes the classes when it ends."""


def keep_classes() -> None:
    """Runs a broker with all topics and keeps what it has loaded (15 s of a processor). Several may do it at once.

    Raises:
        StackError: The broker did not come up, or its Java keeps no classes: that takes version 25.
    """
    kafka_jars()
    kept, watchdog = kept_classes_path(), Watchdog()
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="kafka-") as folder:
        new = Path(folder, kept.name)
        broker = Kafka(Path(folder), watchdog, keep_classes=new)
        watchdog.start()
        try:
            broker.start()
            apply_topics(broker.bootstrap_servers)
        finally:
            broker.stop(grace_seconds=STOP_SECONDS)
            watchdog.stop()
        if not new.exists():
            raise StackError("this Java keeps no classes")
        os.replace(new, kept)


if __name__ == "__main__":
    try:
        keep_classes()
    except (StackError, OSError) as error:  # no Java, no network, a full disk: nothing else needs them
        print(f"the local Kafka will start more slowly: {error}", file=sys.stderr)
