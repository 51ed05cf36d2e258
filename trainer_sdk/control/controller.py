"""What the scheduler speaks to in a rank's process: a server for its calls, made known to the fleet API."""

from typing import Self

from evenkeel.trainer_sdk.control.fleet.access import FleetAccess
from evenkeel.trainer_sdk.control.fleet.own_host import host_towards
from evenkeel.trainer_sdk.control.fleet.registration import Registration
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.control.server import ControlServer
from evenkeel.trainer_sdk.control.tls import ControllerTls
from evenkeel.trainer_sdk.emit.batch import Source

_LOOPBACK = "127.0.0.1"


class Controller:
    """One of a process. It answers from :meth:`start` on; nothing here waits for a scheduler.

    Args:
        mailbox: What calls end up in.
        access: The job's way to the fleet API; without an address nobody is told of the controller.
        source: Whose it is.
        bind_host: Address to listen on; empty = that of the interface by which the fleet API is reached.
        advertise_host: Name under which the scheduler reaches it, where it differs.
        tls: What it shows and asks for; None = no TLS.
        can_reshape: False for a training loop that cannot apply plans.

    Attributes:
        mailbox: What calls end up in.
        address: ``host:port`` for the scheduler.

    Raises:
        RuntimeError: It cannot listen there.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        access: FleetAccess,
        source: Source,
        *,
        bind_host: str = "",
        advertise_host: str = "",
        tls: ControllerTls | None = None,
        can_reshape: bool = True,
    ) -> None:
        self.mailbox = mailbox
        self._server = ControlServer(
            mailbox,
            job_id=access.job_id,
            job_token=access.job_token,
            bind_host=bind_host or _host_towards(access.address),
            can_reshape=can_reshape,
            tls=tls,
        )
        self.address = self._server.address(advertise_host)
        self._registration: Registration | None = None
        if access.address:
            self._registration = Registration(
                access,
                source=source,
                controller_address=self.address,
                is_watched=lambda: self._server.num_watches > 0,
                security=self._server.security,
                can_reshape=can_reshape,
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
    except OSError:
        return _LOOPBACK
