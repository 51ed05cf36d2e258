"""One real Kafka node (KRaft: broker and controller in one process), light enough for a machine with two cores."""

import base64
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from evenkeel.stack.errors import StackError, log_tail
from evenkeel.stack.kafka.jars import kafka_jars, kafka_version
from evenkeel.stack.kafka.java import java_program
from evenkeel.stack.paths import cache_folder
from evenkeel.stack.processes.loops import run_on_own_loop
from evenkeel.stack.processes.ports import LOOPBACK, free_ports, is_listening, start_on_free_ports
from evenkeel.stack.processes.process import ManagedProcess
from evenkeel.stack.processes.watchdog import Watchdog

START_TIMEOUT_SECONDS = 180.0
STOP_GRACE_SECONDS = 15.0
LOG_CONFIGURATION_PATH = Path(__file__).with_name("log4j2.xml")
# Serial collector, first compiler tier: throughput is not needed, start-up and idle cost are.
JAVA_OPTIONS = (
    "-Xms128m",
    "-Xmx448m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    # Classes are kept and no code: the JVM warns of pieces that do not fit. Java before 25 knows none of these.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-AOTAdapterCaching",
    "-XX:-AOTStubCaching",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    f"-Dlog4j2.configurationFile={LOG_CONFIGURATION_PATH}",
)
# A broker that was killed is let in again when its session is over; by default that is 9 s. A service's session may be
# shorter than the usual least of 6 s, so that another takes over sooner.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=1
broker.heartbeat.interval.ms=1000
broker.session.timeout.ms=5000
"""


class Kafka:
    """A broker with its data below ``folder``. Blocks its caller while it starts (1 to 3 s) and stops.

    Args:
        folder: For data, properties and ``kafka.log``; data that is there already is used.
        watchdog: Told of the process.
        say: Told how far the first fetch of Kafka is.
        keep_classes: A file that gets the classes which the broker has loaded, when it stops.
    """

    def __init__(
        self,
        folder: Path,
        watchdog: Watchdog,
        say: Callable[[str], None] = lambda _: None,
        *,
        keep_classes: Path | None = None,
    ) -> None:
        self._folder = folder
        self._watchdog = watchdog
        self._say = say
        self._keep_classes = keep_classes
        self._process: ManagedProcess | None = None
        self._ports: list[int] = []

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def process(self) -> ManagedProcess | None:
        """The server's process, started where it is found again when started once more; None before the start."""
        return self._process

    def start(self) -> None:
        """Starts the broker and returns when it answers; fetches Kafka first where needed.

        Raises:
            StackError: Java is missing, Kafka could not be fetched, or the broker did not come up.
        """
        java = [java_program(), *JAVA_OPTIONS, "-cp", f"{kafka_jars(self._say)}/*"]
        kept = kept_classes_path()
        if self._keep_classes is None and kept.exists():
            java.append(f"-XX:AOTCache={kept}")
        start_on_free_ports(lambda: self._start_once(java), lambda: self.stop(grace_seconds=0))

    def stop(self, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stops the broker; with a grace of 0 it is killed, which is fine for data that nobody wants again."""
        if self._process is not None:
            self._process.stop(grace_seconds=grace_seconds)

    def _start_once(self, java: list[str]) -> None:
        # A broker that starts again is found where it was, unless somebody sits there now.
        if not self._ports or any(is_listening(port) for port in self._ports):
            self._ports = free_ports(2)
        port, controller_port = self._ports
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "server.properties"
        properties.write_text(PROPERTIES.format(host=LOOPBACK, port=port, controller_port=controller_port, data=data))
        if not (data / "meta.properties").exists():
            self._format(java, properties)
        keeping = [] if self._keep_classes is None else [f"-XX:AOTCacheOutput={self._keep_classes}"]
        self._process = ManagedProcess(
            name="Kafka",
            command=[*java, *keeping, "kafka.Kafka", str(properties)],
            log_path=self._folder / "kafka.log",
            watchdog=self._watchdog,
            stop_signal=signal.SIGTERM,
        )
        self._process.start()
        self._process.wait_until(self._answers, timeout_seconds=START_TIMEOUT_SECONDS)

    def _format(self, java: list[str], properties: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        log_path = self._folder / "format.log"
        with log_path.open("wb") as log:
            # "--cluster-id=": an id may begin with a dash.
            done = subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(properties)],
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=START_TIMEOUT_SECONDS,
            )
        if done.returncode != 0:
            raise StackError(f"Kafka's storage could not be formatted; {log_tail(log_path)}")

    def _answers(self) -> bool:
        return is_listening(self._ports[0]) and answers(self.bootstrap_servers)


def kept_classes_path() -> Path:
    """Where :mod:`evenkeel.stack.kafka.keep_classes` keeps what this version's broker loads."""
    return cache_folder() / f"kafka-{kafka_version()}.aot"


def answers(bootstrap_servers: str, *, timeout_seconds: float = 5.0) -> bool:
    """Whether a broker there answers a request for metadata. Safe to call on a thread that runs an event loop."""

    async def ask() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        try:
            await client.start()
            await client.list_topics()
        finally:
            await client.close()

    try:
        run_on_own_loop(ask(), timeout_seconds=timeout_seconds)
    except (KafkaError, OSError):
        return False
    return True
