"""How a process speaks to Kafka, address apart: with TLS or without, and as whom. Everybody reads the same settings.

Both functions read the file of certificates and block for a moment.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenkeel.contracts.pem_files import check_certificates

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PREFIX = "EVENKEEL_KAFKA_"
# A password or a protocol that a broker does not want looks like a broker that is not there.
SETTINGS = f"{_PREFIX}BOOTSTRAP_SERVERS and the other {_PREFIX} settings"


def check_login(protocol: str, username: str | None, password: str | None) -> None:
    """Returns if a protocol has the user and password that it needs.

    Raises:
        ValueError: It has not; the message names the settings.
    """
    if protocol.startswith("SASL") and not (username and password):
        raise ValueError(
            f"{_PREFIX}SECURITY_PROTOCOL {protocol} needs {_PREFIX}SASL_USERNAME and {_PREFIX}SASL_PASSWORD"
        )


def security_arguments(
    protocol: str, mechanism: str, username: str | None, password: str | None, ca_file: Path | None
) -> dict[str, Any]:
    """Keyword arguments of aiokafka's clients; what a protocol has no use for is left out."""
    arguments: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = ssl.create_default_context(cafile=ca_file)
    if protocol.startswith("SASL"):
        arguments |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": username,
            "sasl_plain_password": password,
        }
    return arguments


def kafka_security(settings: Mapping[str, str]) -> dict[str, Any]:
    """The same from settings such as ``os.environ``, where none is needed.

    Raises:
        ValueError: One is wrong, or another one is missing beside it; the message names it.
    """
    protocol, mechanism, username, password, ca_file = (
        settings.get(_PREFIX + name) or default
        for name, default in (
            ("SECURITY_PROTOCOL", PROTOCOLS[0]),
            ("SASL_MECHANISM", MECHANISMS[0]),
            ("SASL_USERNAME", ""),
            ("SASL_PASSWORD", ""),
            ("CA_FILE", ""),
        )
    )
    for name, value, known in (("SECURITY_PROTOCOL", protocol, PROTOCOLS), ("SASL_MECHANISM", mechanism, MECHANISMS)):
        if value not in known:
            raise ValueError(f"{_PREFIX}{name} is {value!r}: one of {', '.join(known)}")
    check_login(protocol, username, password)
    if ca_file:
        try:
            check_certificates(Path(ca_file))
        except ValueError as error:
            raise ValueError(f"{_PREFIX}CA_FILE: {error}") from error
    return security_arguments(protocol, mechanism, username, password, Path(ca_file) if ca_file else None)
