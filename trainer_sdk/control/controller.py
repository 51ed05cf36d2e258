"""What the scheduler speaks to in a rank's process: a server for its calls, made known to the fleet API."""

import os
from typing import Self

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.trainer_sdk.control.fleet.own_host import host_towards
from evenkeel.trainer_sdk.control.fleet.registration import Registration
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.tls import ControllerTls
from evenkeel.trainer_sdk.emit.batch import Source
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

_LOOPBACK = "127.0.0.1"


class Controller:
    """One of a process. It answers from :meth:`start` on; nothing here waits for a scheduler.

    Args:
        mailbox: What calls end up in.
        source: Whose it is.
        services: Where it listens, how it is reached, and what it shows; without a fleet API nobody is told of it.
        can_reshape: False for a training loop that cannot apply plans.
        is_launched: See :class:`Registration`.

    Attributes:
        mailbox: What calls end up in.
        address: ``host:port`` for the scheduler.

    Raises:
        ValueError: A file for its TLS cannot be used; the message names the setting.
        RuntimeError: It cannot listen there.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        source: Source,
        services: ServiceSettings,
        *,
        can_reshape: bool = True,
        is_launched: bool = False,
    ) -> None:
        self.mailbox = mailbox
        self._server = ControlServer(
            mailbox,
            job_id=source.job_id,
            job_token=services.job_token,
            bind_host=services.controller_bind_host or _host_towards(services.fleet_address),
            can_reshape=can_reshape,
            # What only the way to the fleet API needs keeps no rank from training.
            tls=ControllerTls.from_names(services.rank_certificate, services.rank_key, services.scheduler_ca_file),
        )
        self.address = self._server.address(services.controller_advertise_host)
        self._registration: Registration | None = None
        if services.fleet_address:
            self._registration = Registration(
                services.fleet(source.job_id),
                pb.RankProcess(
                    rank=source.rank,
                    incarnation=source.incarnation,
                    node=source.node,
                    device=source.device,
                    address=self.address,
                    process_id=os.getpid(),
                    controller_security=self._server.security,
                    cannot_reshape=not can_reshape,
                ),
                is_watched=lambda: self._server.num_watches > 0,
                is_launched=is_launched,
            )

    def start(self) -> Self:
        """Begin to answer, and to be made known; returns at once."""
        self._server.start()
        if self._registration is not None:
            self._registration.start()
        return self

    def stop(self) -> None:
        """End all streams after the last state; blocks for one call's timeout at most."""
        if self._registration is not None:
            self._registration.stop()
        self._server.stop()


def _host_towards(fleet_address: str) -> str:
    """Loopback where the fleet API is on this machine, or its name is not known yet."""
    try:
        return host_towards(fleet_address) if fleet_address else _LOOPBACK
    except (OSError, ValueError):  # or it is written as gRPC alone reads it
        return _LOOPBACK
