"""TLS of a training process: what its rank controller shows and asks for, and how it and others reach the fleet API.

Files are read once, when a server or a channel is made: new certificates need new processes.
"""

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc

from evenkeel.contracts.pem_files import check_certificates, check_key_pair
from evenkeel.scheduler.v1 import scheduler_pb2 as pb

_IN_CHARGE = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "evenkeel.scheduler.v1.FleetService"},
    }
)
"""A scheduler that stands by says that it does not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerTls:
    """PEM files of a rank's controller.

    Attributes:
        certificate: The chain that it shows; it names the host under which the scheduler reaches the rank.
        key: Its private key.
        scheduler_ca_file: Certificates that the scheduler's is signed by; None = the scheduler need not show any.
    """

    certificate: Path
    key: Path
    scheduler_ca_file: Path | None = None

    @classmethod
    def from_names(cls, certificate: str, key: str, scheduler_ca_file: str) -> Self | None:
        """From names of files, empty where there is none; None when there is no certificate.

        Raises:
            ValueError: One without the other, or a file cannot be used; the message names the setting.
        """
        names = "EVENKEEL_RANK_CERTIFICATE", "EVENKEEL_RANK_KEY"
        check_key_pair(names, Path(certificate) if certificate else None, Path(key) if key else None)
        if not certificate:
            if scheduler_ca_file:
                raise ValueError("EVENKEEL_SCHEDULER_CA_FILE has no effect without EVENKEEL_RANK_CERTIFICATE")
            return None
        if scheduler_ca_file:
            _check_certificates("EVENKEEL_SCHEDULER_CA_FILE", scheduler_ca_file)
        return cls(
            certificate=Path(certificate),
            key=Path(key),
            scheduler_ca_file=Path(scheduler_ca_file) if scheduler_ca_file else None,
        )

    def credentials(self) -> grpc.ServerCredentials:
        """Of the controller's server.

        Raises:
            OSError: A file has gone.
        """
        pair = self.key.read_bytes(), self.certificate.read_bytes()
        if self.scheduler_ca_file is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials([pair], self.scheduler_ca_file.read_bytes(), require_client_auth=True)


def security_of(tls: ControllerTls | None) -> "pb.ControllerSecurity.ValueType":
    """What a rank tells of its controller when it registers."""
    if tls is None:
        return pb.CONTROLLER_SECURITY_PLAIN
    return pb.CONTROLLER_SECURITY_TLS if tls.scheduler_ca_file is None else pb.CONTROLLER_SECURITY_MUTUAL_TLS


def fleet_channel(address: str, ca_file: str = "") -> grpc.Channel:
    """A channel to the fleet API; it connects when first used.

    Args:
        address: ``host:port``; of several schedulers ``host:port,host:port``: calls go to the one that is in charge, as
            their health services say.
        ca_file: PEM file with the certificates that the API's is signed by; empty = no TLS. Of several schedulers each
            shows one for the name of the first.

    Raises:
        OSError: The file cannot be read.
    """
    target, options = _target_of(address)
    if not ca_file:
        return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(Path(ca_file).read_bytes()), options)


def _target_of(address: str) -> tuple[str, list[tuple[str, str]]]:
    """What gRPC calls one or several addresses, and how it chooses between them."""
    places = [place.strip().rpartition(":") for place in address.split(",")]
    if len(places) == 1:
        return address, []
    found: dict[str, None] = {}
    for host, _, port in places:
        # A name that is not known now is left out: the channel lasts no longer than a few calls.
        with suppress(socket.gaierror):
            found |= {f"{each[4][0]}:{port}": None for each in socket.getaddrinfo(host, None, socket.AF_INET)}
    if not found:
        return places[0][0] + ":" + places[0][2], []
    options = [("grpc.service_config", _IN_CHARGE)]
    options += [(name, places[0][0]) for name in ("grpc.ssl_target_name_override", "grpc.default_authority")]
    return f"ipv4:{','.join(found)}", options


def checked_fleet_ca_file(ca_file: str) -> str:
    """The file's name as it was given, if it can be used.

    Raises:
        ValueError: It cannot; the message names ``EVENKEEL_FLEET_CA_FILE``.
    """
    if ca_file:
        _check_certificates("EVENKEEL_FLEET_CA_FILE", ca_file)
    return ca_file


def fleet_tls_advice(details: str, ca_file: str) -> str:
    """What may be wrong with TLS when the fleet API cannot be reached; empty when it is something else.

    Args:
        details: What gRPC says of the call.
        ca_file: The file that the channel was made with; empty = no TLS.
    """
    if not ca_file:
        closed = "Socket closed" in details or "Connection reset" in details
        return "if it speaks TLS, set EVENKEEL_FLEET_CA_FILE" if closed else ""
    if "WRONG_VERSION_NUMBER" in details:
        return "it does not speak TLS: unset EVENKEEL_FLEET_CA_FILE, or give the scheduler EVENKEEL_TLS_CERTIFICATE"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not signed by one of EVENKEEL_FLEET_CA_FILE, or not valid today"
    if "ostname" in details and "erif" in details:
        return "its certificate is for another name than the host in EVENKEEL_FLEET_ADDRESS"
    return ""


def _check_certificates(setting: str, path: str) -> None:
    try:
        check_certificates(Path(path))
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from error
