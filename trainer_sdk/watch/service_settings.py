"""How a process of a job reaches the services: the same for ranks of the engine, for plain loops and for launchers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from evenkeel.contracts.kafka_security import kafka_security
from evenkeel.contracts.mac import job_key
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.emit.emitter import Emitter

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.control.fleet.access import FleetAccess
    from evenkeel.trainer_sdk.control.tls import ControllerTls


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Each attribute is the setting of its name, such as ``EVENKEEL_FLEET_ADDRESS``. Methods load what they need.

    Attributes:
        kafka_bootstrap_servers: Where telemetry goes; empty = nowhere.
        fleet_address: ``host:port`` of the fleet API; empty = the job runs unwatched.
        fleet_token: Token for RegisterJob.
        fleet_ca_file: PEM file with the certificates that the fleet API's is signed by; empty = no TLS to it.
        job_token: Token that the rank controllers require.
        controller_bind_host: Address that the rank controllers listen on; empty = that of the interface by which the
            fleet API is reached.
        controller_advertise_host: Name under which the scheduler reaches them, where it differs; empty = the same.
        rank_certificate: PEM file with the certificate chain that the rank controllers show; empty = no TLS.
        rank_key: PEM file with its private key.
        scheduler_ca_file: PEM file with the certificates that the scheduler's is signed by; empty = it shows none.
    """

    kafka_bootstrap_servers: str = ""
    fleet_address: str = ""
    fleet_token: str = field(default="", repr=False)
    fleet_ca_file: str = ""
    job_token: str = field(default="", repr=False)
    controller_bind_host: str = ""
    controller_advertise_host: str = ""
    rank_certificate: str = ""
    rank_key: str = ""
    scheduler_ca_file: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """As the environment says; what it does not say is empty."""
        return cls(**{each.name: environment.get(f"EVENKEEL_{each.name.upper()}", "") for each in fields(cls)})

    def fleet(self, job_id: str) -> "FleetAccess":
        """A job's way to the fleet API."""
        from evenkeel.trainer_sdk.control.fleet.access import FleetAccess  # noqa: PLC0415 - loads gRPC

        return FleetAccess(
            address=self.fleet_address, ca_file=self.fleet_ca_file, job_id=job_id, job_token=self.job_token
        )

    def tls(self) -> "ControllerTls | None":
        """What rank controllers show and ask for; None = no TLS.

        Raises:
            ValueError: A file cannot be used, also that for the fleet API; the message names the setting.
        """
        from evenkeel.trainer_sdk.control.tls import ControllerTls, checked_fleet_ca_file  # noqa: PLC0415 - loads gRPC

        checked_fleet_ca_file(self.fleet_ca_file)
        return ControllerTls.from_names(self.rank_certificate, self.rank_key, self.scheduler_ca_file)

    def emitter(self, source: Source, environment: Mapping[str, str] = os.environ, *, is_rank: bool = True) -> Emitter:
        """Where a process tells what it measures.

        Args:
            source: Who tells.
            environment: Says how Kafka is spoken to, see :mod:`evenkeel.contracts.kafka_security`.
            is_rank: False for a process without a training thread.

        Raises:
            ValueError: A setting cannot be used.
        """
        if not self.kafka_bootstrap_servers:
            return Emitter()
        security = kafka_security(environment)
        from evenkeel.trainer_sdk.emit.kafka_emitter import KafkaEmitter  # noqa: PLC0415 - loads Kafka

        key = job_key(source.job_id, self.job_token)
        return KafkaEmitter(self.kafka_bootstrap_servers, source, security=security, key=key, is_rank=is_rank)
