"""Settings from the environment: one prefix, frozen, and a wrong one ends the process with one clear line.

Not covered: files, command lines, reload while running. A service reads its settings once, in its composition root, and
passes plain values down.
"""

import re
import sys
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from evenkeel.contracts.kafka_security import check_login
from evenkeel.contracts.pem_files import check_certificates

EXIT_WRONG_SETTINGS = 2
PREFIX = "EVENKEEL_"

_ADDRESS = re.compile(r"^[^\s:,]+:\d{1,5}$")
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^:/@\s]*):[^@\s]*@")


class BindError(OSError):
    """An address from the settings is taken or not this machine's: the service ends with one line that names it."""


class ServiceSettings(BaseSettings):
    """What every service needs to know; a service's own settings class derives from this one.

    Each field is read from ``EVENKEEL_<FIELD NAME IN CAPITALS>``.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    kafka_bootstrap_servers: str = Field(
        description="Kafka brokers, host:port[,host:port]", examples=["localhost:9092"]
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="how to talk to Kafka", examples=["SASL_SSL"]
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="PLAIN", description="how to authenticate with Kafka", examples=["SCRAM-SHA-512"]
    )
    kafka_sasl_username: str | None = Field(default=None, description="user at Kafka", examples=["evenkeel"])
    kafka_sasl_password: SecretStr | None = Field(default=None, description="password at Kafka", examples=["secret"])
    kafka_ca_file: Path | None = Field(
        default=None, description="file with the certificates that Kafka's is signed by", examples=["/etc/kafka/ca.pem"]
    )
    kafka_session_timeout_seconds: float = Field(
        default=6.0,
        ge=1.0,
        le=300.0,
        description="after this long without a heartbeat another instance takes over this one's partitions; less than "
        "6 s where the brokers' group.min.session.timeout.ms is less",
        examples=["2"],
    )
    instance_id: str = Field(
        default="0",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="name of this process among those of its service: one process's own, and kept over a restart; "
        "two that run with one name take the partitions from each other for as long as both live",
        examples=["0"],
    )
    metrics_host: str = Field(
        default="127.0.0.1", description="address to serve /metrics and /healthz on", examples=["127.0.0.1"]
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="port of /metrics and /healthz, 0 = any free one", examples=["9464"]
    )
    ready_file: Path | None = Field(
        default=None, description="file to write the chosen ports to", examples=["/run/evenkeel/telemetry.json"]
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="least severe messages to log", examples=["INFO"]
    )

    @field_validator("kafka_bootstrap_servers")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        for address in value.split(","):
            if not _ADDRESS.match(address.strip()):
                raise ValueError(f"{address.strip()!r} is not host:port")
        return value

    @field_validator("kafka_ca_file")
    @classmethod
    def _check_ca_file(cls, value: Path | None) -> Path | None:
        if value is not None:
            check_certificates(value)
        return value

    @field_validator("ready_file")
    @classmethod
    def _check_ready_file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.parent.is_dir():
            raise ValueError(f"there is no folder {value.parent}")
        return value

    @model_validator(mode="after")
    def _check_sasl(self) -> Self:
        password = self.kafka_sasl_password.get_secret_value() if self.kafka_sasl_password else None
        check_login(self.kafka_security_protocol, self.kafka_sasl_username, password)
        return self


class DatabaseSettings(BaseSettings):
    """What a service with a database needs on top; mix it in beside :class:`ServiceSettings`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    database_url: SecretStr = Field(
        description="the PostgreSQL database", examples=["postgresql://user:password@localhost:5432/evenkeel"]
    )

    @field_validator("database_url")
    @classmethod
    def _check_url(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("postgresql://", "postgresql+psycopg://")):
            raise ValueError("not a postgresql:// address")
        return value


SettingsType = TypeVar("SettingsType", bound=BaseSettings)


def load_settings(settings_class: type[SettingsType]) -> SettingsType:
    """The settings from the environment, or the end of the process.

    Raises:
        SystemExit: With :data:`EXIT_WRONG_SETTINGS`, after one line on standard error that names each wrong setting.
    """
    try:
        return settings_class()
    except ValidationError as error:
        print(explain(settings_class, error), file=sys.stderr)
        raise SystemExit(EXIT_WRONG_SETTINGS) from None


def explain(settings_class: type[BaseSettings], error: ValidationError) -> str:
    """One line that says which settings are wrong, how, and what a right one looks like. Values stay out of it."""
    problems = []
    for detail in error.errors(include_input=False, include_url=False):
        field_name = str(detail["loc"][0]) if detail["loc"] else ""
        field = settings_class.model_fields.get(field_name)
        problem = "is not set" if detail["type"] == "missing" else detail["msg"].removeprefix("Value error, ")
        text = f"{PREFIX}{field_name.upper()}: {problem}" if field_name else problem
        if field is not None:
            text += f" ({field.description}; for example {(field.examples or ['?'])[0]})"
        problems.append(text)
    return "wrong settings: " + "; ".join(problems)


def effective(settings: BaseSettings) -> dict[str, str]:
    """Every setting by its environment name, secrets blanked: to be logged at start."""
    shown = {}
    for field_name in type(settings).model_fields:
        value = getattr(settings, field_name)
        if isinstance(value, SecretStr):
            secret = value.get_secret_value()
            value = _PASSWORD_IN_URL.sub(r"\1:***@", secret) if "://" in secret else "***"
        shown[PREFIX + field_name.upper()] = "" if value is None else str(value)
    return shown
