"""TLS from the scheduler to the ranks' controllers: its settings, its credentials, and whom it can talk to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from evenkeel.contracts.pem_files import check_certificates, check_key_pair
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.common.settings import PREFIX


class RankTlsSettings(BaseSettings):
    """How the scheduler talks to ranks, to be mixed into its settings."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    rank_ca_file: Path | None = Field(
        default=None,
        description="PEM file with the certificates that the ranks' are signed by; unset = no TLS to ranks",
        examples=["/etc/evenkeel/ranks-ca.crt"],
    )
    rank_tls_name: str = Field(
        default="",
        max_length=253,
        description="name that the ranks' certificates carry; empty = the host in each rank's address",
        examples=["ranks.example.org"],
    )
    scheduler_certificate: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain that the scheduler shows to ranks that ask for one",
        examples=["/etc/evenkeel/scheduler.crt"],
    )
    scheduler_key: Path | None = Field(
        default=None,
        description="PEM file with the private key of the certificate shown to ranks",
        examples=["/etc/evenkeel/scheduler.key"],
    )

    @field_validator("rank_ca_file")
    @classmethod
    def _check_ca(cls, value: Path | None) -> Path | None:
        if value is not None:
            check_certificates(value)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        names = "EVENKEEL_SCHEDULER_CERTIFICATE", "EVENKEEL_SCHEDULER_KEY"
        check_key_pair(names, self.scheduler_certificate, self.scheduler_key)
        if self.rank_ca_file is None and (self.scheduler_certificate is not None or self.rank_tls_name):
            raise ValueError(
                "EVENKEEL_SCHEDULER_CERTIFICATE and EVENKEEL_RANK_TLS_NAME have no effect without EVENKEEL_RANK_CA_FILE"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTls:
    """What the scheduler needs to talk TLS to ranks.

    Attributes:
        certificates: PEM certificates that the ranks' are signed by.
        name: Name that the ranks' certificates carry; empty = the host in each address.
        chain: The scheduler's own PEM certificate chain; None = it shows none.
        key: Its private key.
    """

    certificates: bytes
    name: str = ""
    chain: bytes | None = None
    key: bytes | None = None

    @classmethod
    def from_settings(cls, settings: RankTlsSettings) -> Self | None:
        """Reads the files; None when the settings say no TLS.

        Raises:
            OSError: A file has gone since the settings were read.
        """
        if settings.rank_ca_file is None:
            return None
        certificate, key = settings.scheduler_certificate, settings.scheduler_key
        return cls(
            certificates=settings.rank_ca_file.read_bytes(),
            name=settings.rank_tls_name,
            chain=None if certificate is None else certificate.read_bytes(),
            key=None if key is None else key.read_bytes(),
        )

    def channel(self, address: str, options: tuple[tuple[str, int], ...]) -> grpc.aio.Channel:
        """A channel to a rank's controller; it connects when first used."""
        named = (("grpc.ssl_target_name_override", self.name),) if self.name else ()
        credentials = grpc.ssl_channel_credentials(self.certificates, self.key, self.chain)
        return grpc.aio.secure_channel(address, credentials, options=(*options, *named))


class SecurityMismatchError(Exception):
    """A rank's controller and the scheduler cannot talk; the message says who has to change what."""


def check_security(security: "pb.ControllerSecurity.ValueType", tls: RankTls | None) -> None:
    """Accept a rank whose controller wants this.

    A controller that says nothing is one from before TLS: plain.

    Raises:
        SecurityMismatchError: The scheduler cannot talk to it; the message says who has to change what.
    """
    wants_tls = security in (pb.CONTROLLER_SECURITY_TLS, pb.CONTROLLER_SECURITY_MUTUAL_TLS)
    if tls is None and wants_tls:
        raise SecurityMismatchError(
            "the rank's controller speaks TLS only, the scheduler does not: set EVENKEEL_RANK_CA_FILE at the "
            "scheduler, or unset EVENKEEL_RANK_CERTIFICATE of the job"
        )
    if tls is not None and not wants_tls:
        raise SecurityMismatchError(
            "the scheduler talks to ranks over TLS only, the rank's controller does not: give the job "
            "EVENKEEL_RANK_CERTIFICATE and EVENKEEL_RANK_KEY, or unset EVENKEEL_RANK_CA_FILE at the scheduler"
        )
    if tls is not None and security == pb.CONTROLLER_SECURITY_MUTUAL_TLS and tls.chain is None:
        raise SecurityMismatchError(
            "the rank's controller asks for a certificate of the scheduler, which has none: set "
            "EVENKEEL_SCHEDULER_CERTIFICATE and EVENKEEL_SCHEDULER_KEY at the scheduler, or unset "
            "EVENKEEL_SCHEDULER_CA_FILE of the job"
        )


def tls_advice(details: str) -> str:
    """What a person should do about a failed handshake; empty when the details are of something else.

    Args:
        details: What gRPC says of a call over TLS that failed.
    """
    if "SSL_ERROR_SSL" not in details and "Peer Check" not in details and "Hostname Verification" not in details:
        return ""
    if "WRONG_VERSION_NUMBER" in details or "HTTP_REQUEST" in details:
        return "it does not speak TLS: give the job EVENKEEL_RANK_CERTIFICATE and EVENKEEL_RANK_KEY"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "its certificate is not signed by one of EVENKEEL_RANK_CA_FILE, or not valid today"
    if "ostname" in details:
        return "its certificate is for another name: make one for this host, or set EVENKEEL_RANK_TLS_NAME"
    return "its TLS and ours do not go together"
