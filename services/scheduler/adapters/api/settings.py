"""Settings of the fleet API, to be mixed into the scheduler's."""

from pathlib import Path
from typing import Self

import grpc
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from evenkeel.contracts.pem_files import check_key_pair
from evenkeel.services.common.settings import PREFIX
from evenkeel.services.scheduler.adapters.api.requests import MIN_TOKEN_CHARACTERS


class FleetApiSettings(BaseSettings):
    """Where the fleet API listens and who may call it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    fleet_address: str = Field(
        default="127.0.0.1:7600",
        pattern=r"^[^\s,]+:\d{1,5}$",
        description="host:port that the fleet API binds, port 0 = any free one",
        examples=["0.0.0.0:7600"],
    )
    fleet_token: SecretStr = Field(
        description=f"bearer token of the fleet API, at least {MIN_TOKEN_CHARACTERS} characters",
        examples=["the output of: openssl rand -hex 32"],
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the fleet API's certificate chain; unset = no TLS",
        examples=["/etc/evenkeel/tls.crt"],
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key", examples=["/etc/evenkeel/tls.key"]
    )

    @field_validator("fleet_token")
    @classmethod
    def _check_token(cls, value: SecretStr) -> SecretStr:
        token = value.get_secret_value()
        if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError(f"needs at least {MIN_TOKEN_CHARACTERS} printable ASCII characters without blanks")
        return value

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        check_key_pair(("EVENKEEL_TLS_CERTIFICATE", "EVENKEEL_TLS_KEY"), self.tls_certificate, self.tls_key)
        return self

    def credentials(self) -> grpc.ServerCredentials | None:
        """Of the fleet API's server; None = no TLS.

        Raises:
            OSError: A file has gone since the settings were read.
        """
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return grpc.ssl_server_credentials([(self.tls_key.read_bytes(), self.tls_certificate.read_bytes())])
