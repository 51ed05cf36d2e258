"""What the detector needs to know from its environment."""

from pydantic import Field

from evenkeel.services.common.settings import DatabaseSettings, ServiceSettings


class DetectorSettings(ServiceSettings, DatabaseSettings):
    """The detector's settings, read once at start."""

    detector_iterations_per_false_alarm: float = Field(
        default=100_000.0,
        ge=100.0,
        le=1e9,
        description="healthy iterations of a job per false slow verdict that you put up with",
        examples=["100000"],
    )
    detector_snapshot_seconds: float = Field(
        default=5.0,
        ge=0.1,
        le=600.0,
        description="time between two snapshots of a job: how much a restart reads again",
        examples=["5"],
    )
    detector_group: str = Field(
        default="evenkeel-detector",
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="consumer group; instances of one group share the jobs",
        examples=["evenkeel-detector"],
    )
