"""Where the parts of a running stack are, and the settings that lead a process to them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_FORMS = {
    "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": (r"[^\s:,]+:\d{1,5}(\s*,\s*[^\s:,]+:\d{1,5})*", "host:port[,host:port]"),
    "EVENKEEL_FLEET_ADDRESS": (r"[^\s,/]+:\d{1,5}(,[^\s,/]+:\d{1,5})*", "host:port[,host:port]"),
    "EVENKEEL_DATABASE_URL": (r"postgresql://\S+", "postgresql://user:password@host:port/database"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of a stack; empty for a part that it has not.

    Attributes:
        kafka_bootstrap_servers: ``host:port[,host:port]``.
        database_url: ``postgresql://user:password@host:port/database``.
        fleet_address: ``host:port[,host:port]`` of the fleet API: of each scheduler, of which one is in charge.
        fleet_token: Bearer token of the fleet API.
        metrics_ports: Port of ``/metrics`` and ``/healthz`` on loopback, by the name of a service's process.
    """

    kafka_bootstrap_servers: str = ""
    database_url: str = ""
    fleet_address: str = ""
    fleet_token: str = ""
    metrics_ports: Mapping[str, int] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Settings for a job, a service or the command line; only those that have a value."""
        settings = {
            "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers,
            "EVENKEEL_DATABASE_URL": self.database_url,
            "EVENKEEL_FLEET_ADDRESS": self.fleet_address,
            "EVENKEEL_FLEET_TOKEN": self.fleet_token,
        }
        return {name: value for name, value in settings.items() if value}


def wrong_address(name: str, value: str) -> str:
    """What is wrong with the value of a setting, or nothing; a database's address is not repeated, it has a password.

    Args:
        name: Of the setting, as ``EVENKEEL_DATABASE_URL``; others than the addresses of servers are never wrong.
        value: Not empty.
    """
    pattern, form = _FORMS.get(name, ("", ""))
    if not form or re.fullmatch(pattern, value.strip()):
        return ""
    return f"{name} is not {form}" + ("" if "password" in form else f": {value[:100]!r}")
