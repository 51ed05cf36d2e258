"""The telemetry service's settings: those of every service with a database, and what is its own."""

from pydantic import Field

from evenkeel.services.common.settings import DatabaseSettings, ServiceSettings


class TelemetrySettings(ServiceSettings, DatabaseSettings):
    """Read from ``EVENKEEL_*``."""

    telemetry_group: str = Field(
        default="evenkeel-telemetry",
        description="Kafka consumer group of the telemetry service",
        examples=["telemetry"],
    )
    allow_unsigned: bool = Field(
        default=True,
        description="whether a job is believed that is not registered with the fleet, and so has no key to sign by; "
        "what a registered job does not sign is never believed",
        examples=["true"],
    )
    rollup_iterations: int = Field(
        default=16, ge=1, le=100_000, description="iterations that one row of the history sums up", examples=["16"]
    )
    rollup_buffer_rows: int = Field(
        default=100_000,
        ge=1,
        description="rows kept in memory while the database is away; the oldest are dropped beyond",
        examples=["100000"],
    )
    job_idle_seconds: float = Field(
        default=3600.0, gt=0, description="a job that was silent for so long is forgotten", examples=["3600"]
    )
